"""Ordered parallel map over all cores."""

import collections
import itertools
import multiprocessing
import os
import signal
import threading
from concurrent import futures

from tqdm import tqdm

# Other processes would take longer to start than these items take.
NUM_INLINE_ITEMS = 8


def ordered_map(function, items, num_workers=None, threads=False):
    """Yields `function(item)` for every item, in order."""
    # Only a few items per worker are in flight, so memory does not grow with
    # the number of items. Functions that run TensorFlow need `threads`: it
    # releases the GIL and must not be forked.
    items = iter(items)
    num_workers = num_workers or _num_cores()
    yield from map(function, itertools.islice(items, NUM_INLINE_ITEMS))
    # Windows cannot fork, and the functions cannot be sent to new processes.
    if threads or "fork" not in multiprocessing.get_all_start_methods():
        executor, call = futures.ThreadPoolExecutor(num_workers), function
    else:
        # Forked workers start immediately and share the vocabulary instead of
        # receiving a copy. They cannot use TensorFlow, which is not fork-safe.
        executor = futures.ProcessPoolExecutor(
            num_workers,
            multiprocessing.get_context("fork"),
            initializer=_initialize_worker,
            initargs=(function,),
        )
        call = _call_worker_function
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


def _initialize_worker(function):
    global _worker_function
    _worker_function = function
    # Ctrl-C reaches all processes; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent():
    """Exits when the parent is gone: a worker would wait for work forever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _call_worker_function(item):
    return _worker_function(item)


def map_blocks(function, corpus, split, action, threads=False):
    """Yields `function(block)` for every block of a split, with progress."""
    with tqdm(
        total=corpus.text(split).num_bytes,
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
