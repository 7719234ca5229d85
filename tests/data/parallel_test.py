import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from txl_keras.data.parallel import NUM_INLINE_ITEMS
from txl_keras.data.parallel import ordered_map


@pytest.mark.parametrize("kind", ["processes", "threads", "no fork"])
def test_others_do_the_work_of_many(kind, monkeypatch):
    def where(_):
        return os.getpid(), threading.get_ident()

    if kind == "no fork":  # as on Windows
        monkeypatch.setattr(
            multiprocessing, "get_all_start_methods", lambda: ["spawn"]
        )
    found = list(ordered_map(where, range(40), 2, threads=kind == "threads"))
    assert {*found[:NUM_INLINE_ITEMS]} == {where(None)}
    assert where(None) not in found[NUM_INLINE_ITEMS:]
    pids = {pid for pid, _ in found[NUM_INLINE_ITEMS:]}
    assert (os.getpid() in pids) == (kind != "processes")
    assert not multiprocessing.active_children()


def test_an_interrupt_is_left_to_the_parent():
    def interrupt(item):
        if os.getpid() != parent:  # as Ctrl-C does in a terminal
            os.kill(os.getpid(), signal.SIGINT)
        return item

    parent = os.getpid()
    assert list(ordered_map(interrupt, range(20), 2)) == list(range(20))


@pytest.mark.parametrize("threads", [False, True])
def test_items_are_taken_only_as_results_are(threads):
    taken = []

    def items():
        for i in range(10_000):
            taken.append(i)
            yield i

    results = ordered_map(lambda i: i, items(), 2, threads)
    for _ in range(100):
        next(results)
    assert len(taken) < 120
    results.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("bad", [3, 30])
def test_an_error_is_raised_where_it_belongs(threads, bad):
    def function(i):
        if i == bad:
            raise ValueError(f"item {i}")
        return i

    results = ordered_map(function, range(50), 2, threads)
    assert [next(results) for _ in range(bad)] == list(range(bad))
    with pytest.raises(ValueError, match=f"item {bad}"):
        next(results)


@pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="finds workers in /proc"
)
def test_a_killed_parent_leaves_no_worker():
    script = """
import itertools, time
from txl_keras.data.parallel import ordered_map
for i in ordered_map(lambda i: i, itertools.count(), 2):
    print(i, flush=True)
    time.sleep(0.1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE
    )
    children = []
    while process.stdout.readline() and not children:
        listed = f"/proc/{process.pid}/task/{process.pid}/children"
        children = pathlib.Path(listed).read_text().split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children and not any(map(is_running, children))


def is_running(pid):
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"
