import multiprocessing
import os
import signal
import threading

import pytest

from txl_keras.data.parallel import NUM_INLINE_ITEMS
from txl_keras.data.parallel import ordered_map


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("threads", [False, True])
def test_results_come_in_order(num_workers, threads):
    base = 7  # no argument of a module's function: workers are forked
    results = ordered_map(
        lambda i: (i, i * base), range(50), num_workers, threads
    )
    assert list(results) == [(i, i * 7) for i in range(50)]


def test_processes_do_the_work_of_many():
    workers = list(ordered_map(lambda _: os.getpid(), range(40), 2))
    assert set(workers[:NUM_INLINE_ITEMS]) == {os.getpid()}
    assert os.getpid() not in workers[NUM_INLINE_ITEMS:]
    assert not multiprocessing.active_children()


def test_an_interrupt_is_left_to_the_parent():
    def interrupt(item):
        if os.getpid() != parent:  # as Ctrl-C does in a terminal
            os.kill(os.getpid(), signal.SIGINT)
        return item

    parent = os.getpid()
    assert list(ordered_map(interrupt, range(20), 2)) == list(range(20))


def test_threads_stay_in_this_process():
    def where(_):
        return os.getpid(), threading.current_thread() is not main

    main = threading.current_thread()
    found = list(ordered_map(where, range(20), 2, threads=True))
    assert found[NUM_INLINE_ITEMS:] == [(os.getpid(), True)] * 12


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


def test_items_go_to_threads_where_processes_cannot_fork(monkeypatch):
    monkeypatch.setattr(
        multiprocessing, "get_all_start_methods", lambda: ["spawn"]
    )
    pids = ordered_map(lambda _: os.getpid(), range(30), num_workers=2)
    assert set(pids) == {os.getpid()}
