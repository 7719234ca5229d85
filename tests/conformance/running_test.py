"""What scripts share."""

import os
import re
import subprocess
import sys

import pytest
from script_flags import flags_of
from script_runs import TRAIN

from txl_keras.scripts.help_topics import describe_flags
from txl_keras.scripts.running import in_a_child


def test_help_lists_flags_by_topic(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    with flags_of("main.py", "--workdir=run", "--corpus=text") as parse:
        parse()
        topics = re.split(r"\n*(\w+) flags:\n", describe_flags())
        flags = {
            topic: set(re.findall(r"^  --(?:\[no\])?(\w+)", text, re.M))
            for topic, text in zip(topics[1::2], topics[2::2], strict=True)
        }
    # A new flag belongs to a topic.
    assert flags.pop("general") == {
        "workdir", "checkpoint_every", "max_to_keep", "max_sample_tokens",
    }  # fmt: skip
    assert list(flags) == [
        "data", "tokenizer", "model", "optimization", "evaluation", "device",
    ]  # fmt: skip
    for topic, name in (
        ("data", "corpus"),
        ("tokenizer", "line_end"),
        ("model", "num_layers"),
        ("optimization", "learning_rate"),
        ("evaluation", "eval_every"),
        ("device", "tpu"),
    ):
        assert name in flags[topic]


@pytest.mark.parametrize(
    "given, message",
    [
        ("--lr=0.1", "unknown flag --lr. Did you mean --learning_rate?"),
        ("--work_dir=run", "Did you mean --workdir?"),
    ],
)
def test_a_flag_of_others_is_told_with_the_one_that_was_meant(
    given, message, fail
):
    fail("main.py", given, messages=[message])


_MISSPELLED = f"""
import importlib.util
import runpy
import sys

sys.argv = ["main.py", "--learning_rte=0.1"]
try:
    runpy.run_path({str(TRAIN / "main.py")!r}, run_name="__main__")
finally:
    assert "keras" in sys.modules
    print(sorted({{"jax", "sklearn"}} & {{*sys.modules}}))
    print(importlib.util.find_spec("sklearn") is not None)
"""


@pytest.fixture(scope="module")
def misspelled():
    """A process of a script that ended with the error of a flag."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
        return subprocess.run(
            [sys.executable, "-c", _MISSPELLED], capture_output=True, text=True
        )


def test_a_misspelled_flag_is_told_with_the_one_that_was_meant(misspelled):
    done = misspelled
    assert done.returncode == 1
    assert "Did you mean: learning_rate ?" in done.stderr + done.stdout
    # The log of TensorFlow does not stand in front of it.
    assert "oneDNN" not in done.stderr
    assert "cuda" not in done.stderr


def run_txl(*arguments, before="", **environment):
    """Runs `txl` in a process of its own, after some lines of code."""
    code = (
        f"import sys\n{before}\nfrom txl_keras.scripts.txl import main\nmain()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_the_commands_are_listed_without_tensorflow():
    done = run_txl("--help", before="sys.modules['tensorflow'] = None")
    assert done.returncode == 0, done.stderr
    assert "  train           Trains a Transformer-XL" in done.stdout
    done = run_txl("trian")
    assert done.returncode == 1
    assert "Received: trian" in done.stderr


def test_the_log_of_tensorflow_can_be_shown():
    done = run_txl("average", "--help", TF_CPP_MIN_LOG_LEVEL="0")
    assert "Averages the latest" in done.stdout
    assert "This TensorFlow binary" in done.stderr


def test_packages_that_no_script_needs_are_not_imported(misspelled):
    pytest.importorskip("sklearn")
    imported, is_there = misspelled.stdout.splitlines()[-2:]
    assert imported == "[]"
    assert is_there == "True"


def refuse():
    raise ValueError("`sizes` must be others")


def die():
    os._exit(3)


@pytest.mark.large
def test_an_error_of_a_child_is_one_of_its_parent(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(ValueError) as caught:
        in_a_child(refuse)
    assert str(caught.value) == "`sizes` must be others"
    assert "in refuse" in caught.value.__notes__[0]


@pytest.mark.large
def test_a_child_that_dies_is_told_with_its_code(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(RuntimeError, match="ended with 3"):
        in_a_child(die)
