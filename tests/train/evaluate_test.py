"""Runs train/evaluate.py."""

import json
import re
import shutil

import numpy as np
import pytest
from factories import byte_model
from factories import save_run
from script_runs import evaluation_of
from script_runs import results_of

from txl_keras.data import ByteTokenizer
from txl_keras.data import load_corpus
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.workdir import Workdir


@pytest.fixture
def evaluate(succeed):
    """Function that scores a run; returns the result and what was printed."""

    def evaluate(workdir, *flags, split="test"):
        flags = (f"--workdir={workdir}", f"--split={split}", *flags)
        printed = succeed("evaluate.py", *flags)
        return evaluation_of(workdir, split), printed

    return evaluate


def test_evaluate_agrees_with_training_and_takes_longer_memory(
    run, evaluate, tmp_path
):
    trained = results_of(run[0])["test"]
    # The best weights are enough.
    workdir = tmp_path / "kept"
    left_out = shutil.ignore_patterns("checkpoints", "evaluation_*")
    shutil.copytree(run[0], workdir, ignore=left_out)
    same, printed = evaluate(workdir, "--batch_size=3")
    assert f"test: {same['bits_per_token']:.3f} bits per byte" in printed
    assert same["nll"] == pytest.approx(trained["nll"], abs=1e-5)
    assert same["num_tokens"] == trained["num_tokens"]
    assert same["memory_length"] == 12
    assert same["step"] == 60
    assert same["corpus"] is None
    # Of bytes it is the number that was printed.
    assert same["bits_per_byte"] == pytest.approx(same["bits_per_token"])

    flags = "--memory_length=50", "--same_length", "--clamp_length=20"
    longer, _ = evaluate(workdir, "--batch_size=1", *flags)
    assert (longer["memory_length"], longer["clamp_length"]) == (50, 20)
    assert longer["same_length"] is True
    assert longer["num_tokens"] == trained["num_tokens"]
    assert 1e-4 < abs(longer["nll"] - trained["nll"]) < 0.5
    # Results of other settings stay.
    results = json.loads((workdir / "evaluation_test.json").read_text())
    assert results == [same, longer]


def test_evaluate_scores_all_of_a_text_of_ones_own(
    run, evaluate, refuse, tmp_path, capsys
):
    text = tmp_path / "short.txt"
    text.write_bytes("Six times é is this.\n".encode() * 6)
    scores, printed = evaluate(run[0], f"--corpus={text}", split="all")
    assert "short.txt (not the text of the run), all: " in printed
    assert scores["num_tokens"] == 6 * 22 - 1
    warning = "Each of the 16 rows has about 8 tokens"
    assert warning in capsys.readouterr().err
    evaluate(run[0], f"--corpus={text}", "--warmup=memory", split="all")
    assert warning not in capsys.readouterr().err

    of_run = Workdir(str(run[0])).read_config()["corpus"]
    own_text = [f"--corpus={of_run['corpus']}", "--text_key=other"]
    cases = (
        ([], ["`split` all is for text that"]),
        (own_text, ["`split` all is for text that"]),
        (["--corpus=enwik8"], ["published corpora have splits"]),
    )
    refuse("evaluate.py", cases, f"--workdir={run[0]}", "--split=all")


def test_evaluate_prints_the_same_score_of_a_preset(
    run, corpus, succeed, refuse, tmp_path
):
    model = TransformerXLCausalLM.from_preset(run[0])
    model.save_to_preset(tmp_path / "preset")
    preset = f"--preset={tmp_path / 'preset'}"
    flags = ("--segment_length=8", "--max_eval_tokens=300")
    text = f"--corpus={corpus}"
    of_run = succeed("evaluate.py", f"--workdir={run[0]}", *flags)
    path = tmp_path / "nll.npy"
    printed = succeed(
        "evaluate.py", preset, text, *flags, f"--token_nll={path}"
    )
    score = re.search(r"test: (.* over the first 299 of [\d,]+ tok)", of_run)
    assert f"mine.txt, test: {score[1]}" in printed
    assert len(np.load(path)) == 300
    assert f"Written to {path}" in printed
    assert {p.name for p in (tmp_path / "preset").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    cases = (
        ([preset], ["`corpus` must be given"]),
        ([preset, text, "--html"], ["must be left out with --preset"]),
        ([preset, text, f"--workdir={run[0]}"], ["Either `workdir` or"]),
    )
    refuse("evaluate.py", cases)


def test_evaluate_writes_nats_and_a_curve_of_any_text(
    run, succeed, fail, tmp_path
):
    text = tmp_path / "other.txt"
    lines = [f"Sentence {i * 7} says: é {i}.\n" for i in range(200)]
    text.write_text("".join(lines), encoding="utf-8")
    flags = (
        f"--workdir={run[0]}",
        f"--corpus={text}",
        "--document_separator=\\n",
        "--split=valid",
        "--warmup=memory",
        "--position_curve",
    )
    tokens = tmp_path / "nll.npy"
    printed = succeed("evaluate.py", *flags, f"--token_nll={tokens}")
    assert "other.txt (not the text of the run), valid: " in printed
    result = evaluation_of(run[0], "valid")
    assert result["corpus"] == str(text)
    picture = run[0] / "evaluation_valid_positions.png"
    for path in (tokens, picture):
        assert f"Written to {path}" in printed
    assert picture.read_bytes()[:4] == b"\x89PNG"

    valid = load_corpus(str(text)).read("valid")
    nll = np.load(tokens)
    assert len(nll) == len(valid)
    assert np.flatnonzero(np.isnan(nll)).tolist() == [0]
    assert np.nanmean(nll, dtype=float) == pytest.approx(
        result["nll"], rel=1e-6
    )
    # Words that every line of training begins with are known.
    first = valid.index(b"\nSentence") + 1
    assert nll[first + 1 : first + 9].mean() < nll[1:].mean()

    curve = result["position_curve"]
    # All first letters of lines but that of the text.
    assert (curve[0]["start"], curve[0]["num_tokens"]) == (
        0, valid.count(b"\n") - 1
    )  # fmt: skip
    assert sum(bucket["num_tokens"] for bucket in curve) == len(nll) - 1

    # The same result without a curve keeps it.
    flags = [flag for flag in flags if flag != "--position_curve"]
    succeed("evaluate.py", *flags)
    assert evaluation_of(run[0], "valid")["position_curve"] == curve

    fail(
        "evaluate.py", *flags, "--token_nll=nll",
        messages=["`token_nll` must be the path of a .npy file", "nll"],
    )  # fmt: skip


def test_evaluate_slides_a_window_over_a_text(run, corpus, evaluate, refuse):
    flags = "--segment_length=6", "--max_eval_tokens=40", "--batch_size=5"
    slides = "--stride=1", "--memory_length=0"
    result, printed = evaluate(run[0], *flags, *slides)
    assert "over the first 39 of " in printed
    expected = {"stride": 1, "segment_length": 6, "memory_length": 0}
    assert result.items() >= expected.items()
    assert result["num_tokens"] == 39

    cases = (
        (["--stride=1"], ["`stride` must be None", "=12"]),
        (["--stride=7", "--memory_length=0"], ["`stride`", "most 6", "=7"]),
        ([*slides, "--warmup=exact"], ["`warmup` must be left out", "exact"]),
    )
    refuse("evaluate.py", cases, f"--workdir={run[0]}", *flags)
    assert evaluation_of(run[0]) == result


def test_a_text_that_changed_is_not_scored(run, corpus, fail, tmp_path):
    changed = tmp_path / "changed.txt"
    # At the start, of train, and at the end, of test.
    changed.write_bytes(b"different" + corpus.read_bytes()[9:-9] + b"different")
    # The run's own text, as far as it can tell by the path.
    workdir = tmp_path / "run"
    shutil.copytree(run[0], workdir)
    path = workdir / "config.json"
    config = json.loads(path.read_text())
    config["training"]["run"]["corpus"]["corpus"] = str(changed)
    path.write_text(json.dumps(config))
    for script, flags, remedy in (
        ("evaluate.py", [f"--workdir={workdir}"], "another text with --corpus"),
        (
            "plot.py",
            [
                f"--workdirs={workdir}", "--picture=positions",
                f"--output={tmp_path / 'positions.png'}",
            ],
            "for all runs with --corpus",
        ),
    ):  # fmt: skip
        error = fail(script, *flags)
        assert f"is not what it was when the run {workdir} began" in error
        assert remedy in error


@pytest.mark.parametrize("script", ["evaluate.py", "generate.py", "export.py"])
def test_a_workdir_without_a_run_is_named(script, fail, tmp_path):
    assert str(tmp_path) in fail(script, f"--workdir={tmp_path}")


def test_flags_of_an_evaluation_are_checked_before_any_score(
    group, corpus, refuse, tmp_path
):
    memory, none, _ = group
    lstm = tmp_path / "lstm"
    model = byte_model(make=LSTMBackbone)
    save_run(lstm, model, 3, ByteTokenizer(), flags={"segment_length": 5})
    (none / "evaluation_all.json").write_text("{}")
    of_memory, of_none, of_lstm = (
        f"--workdir={path}" for path in (memory, none, lstm)
    )
    cases = (
        ([of_memory, "--corpus="], ["`corpus` must not be empty"]),
        ([of_memory, "--token_nll="], ["`token_nll`", ".npy file"]),
        ([of_none], ["evaluation_all.json", "must hold a JSON list"]),
        (
            [of_lstm, "--same_length"],
            ["must be those of a LSTMBackbone", "same_length"],
        ),
    )
    refuse("evaluate.py", cases, f"--corpus={corpus}", "--split=all")
    assert not (memory / "evaluation_all.json").exists()


def test_a_configuration_names_text_but_no_folder_to_write_to(
    corpus, here, tmp_path, capsys
):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    model = byte_model(make=LSTMBackbone)
    text = {"corpus": str(corpus), "data_dir": str(theirs)}
    config = {"flags": {"segment_length": 5}, "corpus": text}
    run = tmp_path / "run"
    save_run(run, model, 3, ByteTokenizer(), **config)
    flags = (f"--workdir={run}", "--max_eval_tokens=50")
    _, error = here("evaluate.py", *flags)
    assert "`data_dir` must be given: no text was prepared" in error
    assert str(theirs) in error
    assert not list(theirs.iterdir())
    _, error = here("evaluate.py", *flags, f"--data_dir={tmp_path / 'mine'}")
    assert error is None
    assert f"From config.json: --corpus={corpus}\n" in capsys.readouterr().err
    # Where text was prepared before, as by the run itself, it is found.
    (theirs / "txl_keras_tokens").mkdir()
    assert here("evaluate.py", *flags)[1] is None
