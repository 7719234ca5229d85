"""Runs scripts of train/ with small settings, and reads their results."""

import contextlib
import fcntl
import json
import os
import pathlib
import subprocess
import sys

TRAIN = pathlib.Path(__file__).parents[1] / "train"
TINY = (
    "--num_layers=1",
    "--num_heads=2",
    "--hidden_dim=16",
    "--intermediate_dim=24",
    "--memory_length=12",
    "--dropout=0.1",
    "--batch_size=4",
    "--segment_length=8",
    "--eval_batch_size=3",
    "--max_steps=60",
    "--steps_per_execution=7",
    "--eval_every=25",
    "--checkpoint_every=20",
    "--learning_rate=0.01",
    "--warmup_steps=0",
    "--max_sample_tokens=40",
    "--tokenizer=bytes",
)
CLASSIFIER_SIZES = (
    "--num_layers=1", "--hidden_dim=16", "--num_heads=2",
    "--intermediate_dim=16", "--memory_length=8", "--segment_length=8",
)  # fmt: skip


def run_code(code, *arguments, stdout=subprocess.PIPE, **environment):
    """Runs lines of Python in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


LOCK = """
import sys
from txl_keras.file_lock import lock
file = open(sys.argv[1], "w")
lock(file, wait=False)
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked_elsewhere(path):
    """A process that locks a file until it can read no more from its stdin."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCK, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process


def write_mails(path, numbers):
    """Writes a table of texts whose first word tells their class."""
    lines = ["label\tn\ttext"]
    for i in numbers:
        label, word = (("spam", "WIN"), ("ham", "meet"))[i % 2]
        lines.append(f'{label}\t{i}\t{word} {i * i} "{"x" * (i % 30)}')
    path.write_text("\n".join(lines) + "\n")
    return path


def metrics_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def results_of(workdir):
    return json.loads((workdir / "results.json").read_text())


def evaluation_of(workdir, split="test"):
    """Newest result of evaluate.py."""
    path = workdir / f"evaluation_{split}.json"
    return json.loads(path.read_text())[-1]


def made_once(make, name, tmp_path_factory):
    """Path that `make(path)` wrote in only one of pytest's processes."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    path, unfinished = root / name, root / f"{name}.unfinished"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(unfinished)
            unfinished.rename(path)
    return path
