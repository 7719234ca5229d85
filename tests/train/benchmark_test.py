"""Runs train/benchmark.py."""

import json
import sys

import pytest
from script_runs import TRAIN

TINY = (
    *("--num_layers=1", "--num_heads=2", "--hidden_dim=16", "--turns=1"),
    *("--intermediate_dim=24", "--memory_length=6", "--segment_length=4"),
    *("--calls_per_turn=2", "--batch_size=3", "--vocabulary_size=7"),
)


@pytest.mark.parametrize(
    "experiment, names",
    [
        ("training", ["txl_keras"]),
        ("evaluation", ["txl_keras", "training path"]),
    ],
)
def test_steps_are_timed_in_turns(experiment, names, succeed, tmp_path):
    output = tmp_path / "steps.jsonl"
    printed = succeed(
        "benchmark.py",
        f"--experiment={experiment}",
        f"--output={output}",
        *TINY,
    )
    line = json.loads(output.read_text())
    assert line["vocabulary_size"] == 7
    assert list(line["seconds"]) == names
    assert line["peak_bytes"] > 2**20
    for name, seconds in line["seconds"].items():
        assert name in printed
        least, greatest = line["spread"][name]
        assert 0 < least <= seconds <= greatest
        assert line["tokens_per_s"][name] == pytest.approx(3 * 4 / seconds)
        assert line["utilization"][name] == pytest.approx(
            line["flops"] / seconds / line["peak_flops"]
        )


def test_a_token_is_timed_beside_what_it_must_read(succeed, tmp_path):
    output = tmp_path / "generation.jsonl"
    succeed(
        "benchmark.py", "--experiment=generation", f"--output={output}", *TINY
    )
    line = json.loads(output.read_text())
    assert list(line["seconds"]) == ["txl_keras", "training path"]
    # Keys and values of 3 rows and 6 entries, the positions of 7 distances.
    caches = 2 * 3 * 6 * 16 + 7 * 16
    assert line["bytes"] > 4 * caches
    assert line["bytes_per_s"] > 0


def test_memory_is_held_against_windows_that_slide(succeed, fail, tmp_path):
    output = tmp_path / "slow.jsonl"
    flags = (
        *("--num_layers=1", "--num_heads=2", "--hidden_dim=16"),
        *("--intermediate_dim=24", "--segment_length=4", "--calls_per_turn=2"),
        "--turns=1",
    )
    speed = ("benchmark.py", "--experiment=evaluation_speed", *flags)
    printed = succeed(*speed, "--attention_lengths=9", f"--output={output}")
    assert "attention length      9: " in printed
    line = json.loads(output.read_text())
    assert line["memory_length"] == [9]
    (result,) = line["results"]
    assert result["attention_length"] == 9
    ours, sliding = result["seconds_per_token"].values()
    assert result["slowdown"] == pytest.approx(sliding / ours)
    assert result["published_slowdown"] is None
    fail(
        *speed, "--attention_lengths=7",
        messages=["`attention_lengths` must be at least 2 segments, 8"],
    )  # fmt: skip


PEER = """
import json, sys
sizes = json.loads(sys.argv[-1])
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request.get("compiled"):
        answer = {"cannot": "no compiler"}
    else:
        answer = {"seconds": [sizes["batch_size"] * request["num_steps"]]}
    print(json.dumps(answer), flush=True)
"""


def python(folder, program):
    """Returns an executable that runs a program, whatever its arguments."""
    (folder / "peer.py").write_text(program)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/peer.py "$@"\n')
    path.chmod(0o755)
    return f"--peer_python={path}"


def test_a_peer_takes_turns_and_may_be_unable_to_compile(succeed, tmp_path):
    output = tmp_path / "steps.jsonl"
    printed = succeed(
        "benchmark.py", "--experiment=training", f"--output={output}",
        python(tmp_path, PEER), *TINY,
    )  # fmt: skip
    assert "Skipping hugging_face compiled, which cannot run" in printed
    seconds = json.loads(output.read_text())["seconds"]
    assert list(seconds) == ["txl_keras", "hugging_face"]
    assert seconds["hugging_face"] == 3 * 2


@pytest.mark.parametrize(
    "program, message",
    [
        ("print('Hello')", "it printed no JSON but 'Hello'"),
        ("", "it has ended"),
        ('print(\'{"error": "no torch"}\')', "no torch"),
    ],
)
def test_what_is_no_peer_is_named(program, message, fail, tmp_path):
    peer = python(tmp_path, program)
    fail(
        "benchmark.py", "--experiment=training", peer, *TINY,
        messages=[message, str(TRAIN / "peers"), str(tmp_path / "python")],
    )  # fmt: skip


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--backbone=lstm"], "`backbone` must be"),
        (
            ["--normalize_first", f"--peer_python={sys.executable}"],
            "`normalize_first` must be False with --peer_python",
        ),
        (
            ["--attention_lengths=9"],
            "`attention_lengths` can only be given with --experiment=evalua",
        ),
        (
            ["--peer_python=nowhere"],
            "`peer_python` must be the path of an executable Python",
        ),
        (["--cutoffs=auto"], "`cutoffs` must be a list of integers"),
        (
            ["--output=/proc/no/folder/a.jsonl"],
            "`output` must be a folder that can be written to",
        ),
    ],
)
def test_what_cannot_be_timed_is_said(flags, message, fail):
    fail(
        "benchmark.py", "--experiment=training", *TINY, *flags,
        messages=[message],
    )  # fmt: skip
