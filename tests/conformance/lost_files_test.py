"""Runs whose files were removed, damaged or swapped, as main.py meets them."""

import shutil

import numpy as np
import pytest
import script_runs
from factories import save_tensors
from factories import tensors_of
from script_flags import flags_of

from txl_keras.scripts import training_flags
from txl_keras.workdir import Workdir

TINY = (*script_runs.TINY, "--max_steps=24", "--eval_every=8")
TINY = (*TINY, "--checkpoint_every=8", "--max_sample_tokens=3")


def bytes_of(workdir):
    files = [path for path in workdir.rglob("*") if path.is_file()]
    # Every start of the program has a file of events of its own.
    files = [path for path in files if path.parent.name != "events"]
    return {path: path.read_bytes() for path in files}


@pytest.mark.large  # 40 s
def test_what_is_lost_is_mended_or_refused(fail, succeed, corpus, tmp_path):
    run = tmp_path / "run"
    flags = (f"--workdir={run}", f"--corpus={corpus}", *TINY)
    succeed("main.py", *flags)
    before = bytes_of(run)

    # The hash of the tokenizer is in the configuration: it is written again.
    (run / "tokenizer.json").unlink()
    message = "`txl train` writes it again"
    fail("evaluate.py", f"--workdir={run}", messages=[message])
    assert "The run is finished" in succeed("main.py", *flags)
    assert bytes_of(run) == before

    # A checkpoint with NaN in it gives way to the one before.
    path = run / "checkpoints" / "ckpt-24"
    state = tensors_of(path)
    state["optimizer/0005"].flat[-1] = np.nan
    save_tensors(state, path)
    (run / "results.json").unlink()
    assert "step 16 of 24" in succeed("main.py", *flags)
    after = bytes_of(run)
    for name in ("results.json", "metrics.jsonl", "sample.txt"):
        assert after[run / name] == before[run / name]

    # A run of the same sizes, but another seed.
    other = tmp_path / "other"
    shutil.copytree(run, other)
    flags = (*flags, f"--workdir={other}", "--seed=1")
    fail("main.py", *flags, messages=["seed was 0, now 1"])


def test_an_empty_path_is_not_the_present_folder(fail, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"class_name": "TransformerXLCausalLM"}
    config |= dict.fromkeys(("flags", "model", "data", "corpus"), {})
    Workdir(".").claim(config)
    convert = "convert.py", "--input_format=workdir"
    fail(*convert, "--input=", "--output=new", messages=["is not empty"])
    messages = ["`output` must be given"]
    fail(*convert, "--input=.", "--output=", messages=messages)
    (tmp_path / "file").write_text("")
    message = "`output` must be a folder that can be written to"
    messages = [message, "output=file/new"]
    fail(*convert, "--input=.", "--output=file/new", messages=messages)


@pytest.mark.parametrize(
    "flags, of_run, expected",
    [
        ("", {"learning_rate": 0.004}, 0.002),
        ("", {}, 5e-5),
        ("--learning_rate=0.003", {"learning_rate": 0.004}, 0.003),
    ],
)
def test_fine_tuning_takes_smaller_steps(flags, of_run, expected, tmp_path):
    (tmp_path / "flags").write_text(flags)
    with flags_of("main.py", "--workdir=a", "--corpus=b") as parse:
        parse(tmp_path / "flags")
        training_flags.set_fine_tuning_rate(of_run)
        rate = training_flags.result_settings()["learning_rate"]
        assert rate == expected
