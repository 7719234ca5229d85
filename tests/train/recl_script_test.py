"""Runs train/recl.py."""

import json

import numpy as np
import pytest

from txl_keras.evaluation.backup import Backup


def test_context_lengths_of_a_group_are_measured(
    group, corpus, succeed, tmp_path
):
    memory, none, _ = group
    output = tmp_path / "new" / "folder" / "recl.json"
    printed = succeed(
        "recl.py",
        f"--workdirs={memory},{none}",
        "--labels=far,near",
        f"--corpus={corpus}",
        "--context_lengths=4,8,12",
        "--top_r=0.25,1",
        "--num_positions=11",
        f"--output={output}",
    )
    written = json.loads(output.read_text())
    assert written["context_lengths"] == [4, 8, 12]
    assert written["corpus"] == str(corpus)
    first, second = written["models"]
    assert (first["segment_length"], first["memory_length"]) == (5, 7)
    assert (second["segment_length"], second["memory_length"]) == (5, 0)
    assert (first["workdir"], first["step"]) == (str(memory), 3)
    # Without memory the last segment is all it sees.
    assert second["nll"] == pytest.approx([second["nll"][0]] * 3, abs=1e-5)
    assert np.abs(np.diff(first["nll"])).min() > 1e-6
    for model in written["models"]:
        assert [r["top_r"] for r in model["recl"]] == [0.25, 1]
        assert all(len(r["gains"]) == 2 for r in model["recl"])
    assert output.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    # What was saved on the way is gone.
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "recl.json", "recl.png",
    ]  # fmt: skip
    # Weights are random: no context helps.
    assert [line.split() for line in printed.splitlines()[1:4]] == [
        ["model", "r", "=", "0.25", "r", "=", "1"],
        ["far", "<=", "4", "<=", "4"],
        ["near", "<=", "4", "<=", "4"],
    ]
    # Drawn once more.
    numbers = f"--numbers={output}"
    for picture, texts in (
        ("recl", ["far", "near", "r = 0.25"]),
        ("context_losses", ["far", "near", "bits per byte", "12"]),
    ):
        output = tmp_path / f"{picture}.svg"
        succeed(
            "plot.py",
            f"--picture={picture}",
            numbers,
            f"--output={output}",
        )
        for text in texts:
            assert f"<!-- {text} -->" in output.read_text("utf-8")


def test_a_measurement_that_was_stopped_goes_on(
    group, corpus, here, succeed, fail, monkeypatch, tmp_path
):
    output, whole = tmp_path / "recl.json", tmp_path / "whole.json"
    state = tmp_path / "recl_state"
    flags = (
        f"--workdirs={group[0]},{group[1]}",
        f"--corpus={corpus}",
        "--num_positions=7",
        "--context_lengths=5,6,7",
    )
    succeed("recl.py", *flags, f"--output={whole}")
    saved = []

    def save(backup, state, save=Backup.save):
        saved.append(save(backup, state))
        if len(saved) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Backup, "save", save)
        _, code = here("recl.py", *flags, f"--output={output}")
    assert code == 130
    assert not output.exists()
    for changed in ("--num_positions=8", "--context_lengths=5,7"):
        fail(
            "recl.py", *flags, changed, f"--output={output}",
            messages=[str(state), "remove the file"],
        )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "save", save)
        succeed("recl.py", *flags, f"--output={output}")
    assert len(saved) == 6
    assert output.read_text() == whole.read_text()
    assert not state.exists()


def test_what_is_no_group_is_refused_before_any_work(
    group, corpus, refuse, tmp_path
):
    memory, none, other = group
    two = f"--workdirs={memory},{none}"
    output = tmp_path / "recl.json"
    text = f"--corpus={corpus}"
    # Is found missing after all other errors.
    no_text = "--corpus=no/such/text"
    cases = (
        ([f"--workdirs={memory}", text], ["`workdirs` must be two"]),
        ([f"--workdirs={memory},{other}", text], ["one tokenizer", str(other)]),
        ([two], ["`corpus` must be given"]),
        ([two, no_text, "--top_r=2"], ["`top_r`", "2.0"]),
        ([two, no_text, "--top_r=nan"], ["`top_r`", "nan"]),
        ([two, no_text, "--top_r=x"], ["`top_r` must be numbers", "=x"]),
        ([two, no_text, "--top_r="], ["`top_r` must be numbers"]),
        ([two, no_text, "--context_lengths=1,2,4"], ["`context_lengths`"]),
        ([two, text, "--num_positions=99999"], ["`num_positions` must be"]),
        (
            [two, no_text, f"--output={corpus}/a.json"],
            ["`output`", corpus.name],
        ),
        ([two, no_text, "--output=a.txt"], ["`output` must end with .json"]),
    )
    refuse("recl.py", cases, f"--output={output}")
    assert not output.exists()
