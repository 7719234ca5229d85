"""Runs train/evaluate.py with --dynamic."""

import re

import pytest
from script_runs import evaluation_of

FEW = "--max_eval_tokens=300"


@pytest.fixture
def command(group, corpus):
    return "evaluate.py", f"--workdir={group[0]}", f"--corpus={corpus}"


def test_weights_follow_the_text(command, group, succeed):
    succeed(*command, FEW, "--batch_size=1")
    static = evaluation_of(group[0])
    assert static["evaluator"] is None
    printed = succeed(
        *command, FEW, "--dynamic=rms", "--dynamic_segments=9",
        "--dynamic_learning_rate=0,1e-3", "--dynamic_decay=0,0.01",
    )  # fmt: skip
    assert len(re.findall("valid, learning rate .*bits per byte", printed)) == 4
    found = evaluation_of(group[0])
    assert found["evaluator"]["learning_rate"] == 1e-3
    assert found["evaluator"]["segments"] == 9
    assert found["batch_size"] == 1  # by default
    assert found["num_tokens"] == static["num_tokens"]
    assert found["nll"] < static["nll"]
    assert not list(group[0].glob("*state*"))


def test_wrong_flags_are_refused(command, group, refuse):
    sgd, rms = "--dynamic=sgd", "--dynamic=rms"
    whole = "--split=all", "--dynamic_segments=1"
    cases = (
        (["--dynamic_decay=0.1"], ["can only be given with --dynamic"]),
        ([sgd, "--dynamic_decay=0.1"], ["with --dynamic=rms"]),
        ([rms, "--dynamic_learning_rate=fast"], ["must be numbers"]),
        ([sgd, "--stride=2"], ["`stride` must be left out"]),
        ([rms, *whole], ["`split` must be valid or test", "=all"]),
    )
    refuse(command[0], cases, *command[1:])
