"""Runs train/benchmark.py."""

import json
import sys

TINY = (
    *("--num_layers=1", "--num_heads=2", "--hidden_dim=16", "--turns=1"),
    *("--intermediate_dim=24", "--memory_length=6", "--segment_length=4"),
    *("--calls_per_turn=2", "--batch_size=3", "--vocabulary_size=7"),
)


def test_steps_are_timed_in_turns(succeed):
    printed = succeed("benchmark.py", "--experiment=training", *TINY)
    line = json.loads(printed.splitlines()[-1])
    assert line["vocabulary_size"] == 7
    assert line["seconds"]["txl_keras"] > 0
    assert 0 < line["utilization"]["txl_keras"] < 1


def test_a_token_is_timed_beside_what_it_must_read(succeed):
    printed = succeed(
        "benchmark.py", "--experiment=generation", "--engine=tensorflow", *TINY
    )
    line = json.loads(printed.splitlines()[-1])
    assert list(line["seconds"]) == ["txl_keras", "tensorflow"]
    # Keys and values of 3 rows and 6 entries, the positions of 7 distances.
    caches = 2 * 3 * 6 * 16 + 7 * 16
    assert line["bytes"] > 4 * caches
    assert line["bytes_per_s"] > 0


PEER = """
import json, sys
sizes = json.loads(sys.argv[-1])
seconds = sizes["batch_size"] * sizes["calls_per_turn"]
print("Hello")
print(json.dumps({"hugging_face": [seconds]}))
"""


def test_a_peer_is_timed_by_its_own_python(succeed, tmp_path):
    (tmp_path / "peer.py").write_text(PEER)
    path = tmp_path / "python"
    path.write_text(
        f'#!/bin/sh\nexec {sys.executable} {tmp_path}/peer.py "$@"\n'
    )
    path.chmod(0o755)
    command = "benchmark.py", "--experiment=evaluation", *TINY
    printed = succeed(*command, f"--peer_python={path}")
    seconds = json.loads(printed.splitlines()[-1])["seconds"]
    assert list(seconds) == ["txl_keras", "training path", "hugging_face"]
    assert seconds["hugging_face"] == 3 * 2
