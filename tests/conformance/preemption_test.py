"""Runs that are killed, or told to stop, end as if nothing had happened.

pytest -m large -n 0 -s tests/conformance/preemption_test.py
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from factories import tensors_of
from script_runs import TINY
from workers import tf_configs

from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.stopping import EXIT_CODE

MAIN = pathlib.Path(__file__).parents[2] / "train" / "main.py"
SETTINGS = (*TINY, "--num_layers=2", "--eval_batch_size=4")


def start(workdir, flags, **environment):
    """Starts main.py; what it prints goes to `WORKDIR.log`."""
    with open(f"{workdir}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, MAIN, f"--workdir={workdir}", *SETTINGS, *flags],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )


def log_of(workdir):
    return pathlib.Path(f"{workdir}.log").read_text()


def finish(workdir, flags):
    assert start(workdir, flags).wait() == 0, log_of(workdir)


def lines_of(workdir):
    path = workdir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for_lines(number, process, workdir):
    while lines_of(workdir) < number:
        assert process.poll() is None, "the run ended too early"
        time.sleep(0.01)


def state_of(workdir):
    """All values of the newest checkpoint."""
    directory = str(workdir / "checkpoints")
    return tensors_of(f"{directory}/ckpt-{saved_steps(directory)[-1]}")


def assert_same_run(workdir, whole):
    """Weights, optimizer, memory, lines and results: bit for bit."""
    ours, expected = state_of(workdir), state_of(whole)
    assert ours.keys() == expected.keys()
    assert any(name.startswith("memory/") for name in ours)
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value)
    for name in ("metrics.jsonl", "results.json", "sample.txt"):
        assert (workdir / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.large  # 10 minutes each
@pytest.mark.parametrize(
    "variant", ["", "--num_cpu_devices=2", "--precision=float16"]
)
def test_a_run_killed_twenty_times_equals_one_that_was_not(
    variant, corpus, tmp_path
):
    flags = (
        f"--corpus={corpus}",
        "--max_steps=4000",
        "--eval_every=50",
        "--checkpoint_every=35",
        *variant.split(),
    )
    finish(tmp_path / "whole", flags)
    workdir = tmp_path / "killed"
    draw = random.Random(0)
    killed_at = []
    for _ in range(20):
        process = start(workdir, flags)
        wait_for_lines(lines_of(workdir) + 1, process, workdir)
        time.sleep(draw.uniform(0, 1.5))
        # Most without a warning, some with one.
        number, code = draw.choice(
            [(signal.SIGKILL, -signal.SIGKILL)] * 3
            + [(signal.SIGTERM, EXIT_CODE)]
        )
        process.send_signal(number)
        assert process.wait() == code
        killed_at.append(lines_of(workdir))
    print("lines at each kill:", killed_at)
    finish(workdir, flags)
    assert_same_run(workdir, tmp_path / "whole")


def start_workers(workdir, flags, num_workers=2):
    """Workers of one run, each with a text of its own to prepare."""
    return [
        start(workdir, flags, TF_CONFIG=config)
        for config in tf_configs(num_workers)
    ]


def finish_workers(workdir, flags, num_workers=2):
    for process in start_workers(workdir, flags, num_workers):
        assert process.wait() == 0, log_of(workdir)


@contextlib.contextmanager
def running_workers(workdir, flags, num_workers=2, lines=1):
    """Workers that have written so many more lines; kills what is left."""
    end = lines_of(workdir) + lines
    processes = start_workers(workdir, flags, num_workers)
    try:
        wait_for_lines(end, processes[0], workdir)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def assert_all_end(workdir, processes, lost):
    """All but the lost worker end by themselves, and tell why."""
    start = time.monotonic()
    for index, process in enumerate(processes):
        if index != lost:
            assert process.wait(90) == EXIT_CODE, log_of(workdir)
    print(f"worker {lost} lost, noticed in {time.monotonic() - start:.0f} s")
    log = log_of(workdir)
    assert "another worker ended, hangs or cannot be reached" in log


@pytest.mark.large
def test_two_workers_stop_together_and_lose_nothing(corpus, tmp_path):
    flags = (
        f"--corpus={corpus}",
        "--max_steps=600",
        "--eval_every=50",
        "--checkpoint_every=35",
    )
    whole, workdir = tmp_path / "whole", tmp_path / "stopped"
    finish_workers(whole, flags)
    # The signal comes to one of them: first the chief, then the other.
    for index in (0, 1):
        with running_workers(workdir, flags, lines=20) as processes:
            processes[index].send_signal(signal.SIGTERM)
            codes = [process.wait() for process in processes]
            assert codes == [EXIT_CODE, EXIT_CODE], log_of(workdir)
    finish_workers(workdir, flags)
    assert_same_run(workdir, whole)


@pytest.fixture(scope="module")
def four_workers(corpus, tmp_path_factory):
    """A run of four workers that nothing disturbed, and its flags."""
    workdir = tmp_path_factory.mktemp("runs") / "four"
    flags = (
        f"--corpus={corpus}",
        "--max_steps=500",
        "--eval_every=100",
        "--checkpoint_every=14",
        "--num_layers=1",
        "--max_eval_tokens=500",
    )
    finish_workers(workdir, flags, 4)
    return workdir, flags


@pytest.mark.large  # 10 minutes
def test_four_workers_killed_ten_times_equal_four_that_were_not(
    four_workers, tmp_path
):
    whole, flags = four_workers
    workdir = tmp_path / "killed"
    draw = random.Random(0)
    # Each of them at least twice, the first worker is the chief.
    for index in draw.sample([0, 1, 2, 3] * 3, 10):
        with running_workers(
            workdir, flags, 4, lines=draw.randint(1, 4)
        ) as processes:
            time.sleep(draw.uniform(0, 0.1))
            processes[index].kill()
            assert_all_end(workdir, processes, lost=index)
    finish_workers(workdir, flags, 4)
    assert_same_run(workdir, whole)


@pytest.mark.large  # 2 minutes
def test_a_slow_worker_is_waited_for_and_a_hanging_one_for_a_while(
    four_workers, tmp_path
):
    whole, flags = four_workers
    workdir = tmp_path / "hanging"
    with running_workers(workdir, flags, 4) as processes:
        # Worker 2 hangs for some seconds, and then is a slow machine.
        for seconds in (10, *[0.3] * 20):
            processes[2].send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            processes[2].send_signal(signal.SIGCONT)
            time.sleep(0.1)
        wait_for_lines(lines_of(workdir) + 1, processes[0], workdir)
        assert [process.poll() for process in processes] == [None] * 4
        # The chief hangs for longer than the others wait.
        processes[0].send_signal(signal.SIGSTOP)
        assert_all_end(workdir, processes, lost=0)
        processes[0].send_signal(signal.SIGCONT)
        assert processes[0].wait(90) == EXIT_CODE
    finish_workers(workdir, flags, 4)
    assert_same_run(workdir, whole)


@pytest.mark.large  # 1 minute
def test_four_workers_agree_on_the_steps_that_fit(corpus, tmp_path):
    flags = (f"--corpus={corpus}", "--minutes=0.05", "--max_sample_tokens=0")
    finish_workers(tmp_path / "timed", flags, 4)
    log = log_of(tmp_path / "timed")
    (steps,) = re.findall(r"minutes=.*: ([\d,]+) steps instead", log)
    assert "retracing" not in log
    last = state_of(tmp_path / "timed")["step"]
    assert last == int(steps.replace(",", ""))
