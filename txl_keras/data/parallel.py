"""Applies a function to many things on all cores, in order."""

import collections
import itertools
import multiprocessing
import os
import threading
import time
from concurrent import futures

from tqdm import tqdm

# Fewer things are done before other processes would have started.
FEW = 8


def ordered_map(function, items, num_workers=None, threads=False):
    """Yields `function(item)` for every item, in order.

    Items are taken and results held only as fast as they are consumed, a few
    for each worker, so memory does not grow with their number.

    Args:
        function: Function of an item.
        items: Iterable. Iterated over here, not in the workers.
        num_workers: Optional integer. Default: the cores this process may use.
        threads: Boolean. True for functions that run TensorFlow, which lets
            other threads go on and must not be forked. False for Python and
            NumPy, which then run in processes.

    Yields:
        What the function returns, or raises.
    """
    items = iter(items)
    num_workers = num_workers or _num_cores()
    yield from map(function, itertools.islice(items, FEW))
    if num_workers == 1:
        yield from map(function, items)
        return
    if threads:
        executor, call = futures.ThreadPoolExecutor(num_workers), function
    else:
        # Forked, so that a vocabulary is shared and not sent, and a worker
        # starts in no time; TensorFlow, which forks badly, is not used in it.
        executor = futures.ProcessPoolExecutor(
            num_workers,
            multiprocessing.get_context("fork"),
            initializer=_remember,
            initargs=(function,),
        )
        call = _call_remembered
    pending = collections.deque()
    try:
        for item in items:
            pending.append(executor.submit(call, item))
            if len(pending) > 2 * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def _num_cores():
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _remember(function):
    global _remembered
    _remembered = function
    threading.Thread(
        target=_end_with, args=(os.getppid(),), daemon=True
    ).start()


def _end_with(parent):
    """A worker whose parent was killed would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _call_remembered(item):
    return _remembered(item)


def map_blocks(function, corpus, split, action, threads=False):
    """Applies a function to every block of a split, with a progress bar.

    Args:
        function: Function of a `Block`.
        corpus: A `Corpus`.
        split: String.
        action: String, what the bar says is done.
        threads: As for `ordered_map`.

    Yields:
        What the function returns, in order.
    """
    with tqdm(
        total=corpus.num_bytes(split),
        desc=f"{action} {split}",
        unit="B",
        unit_scale=True,
        disable=None,
        leave=False,
    ) as bar:

        def shown_blocks():
            for block in corpus.blocks(split):
                yield block
                bar.update(block.num_bytes)

        yield from ordered_map(function, shown_blocks(), threads=threads)
