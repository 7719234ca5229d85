"""Times of contenders that take turns.

Times of a shared machine come and go; of what runs in turns ratios stay.
"""

import time
import typing

import numpy as np


class CannotRunError(RuntimeError):
    """A contender cannot run here, and why."""


class Times(typing.NamedTuple):
    """What turns took, by the name of the contender.

    Attributes:
        seconds: Dictionary of medians, of what a contender says it took.
        compile_seconds: Dictionary: how much longer the first turn took than a
            median one. That is tracing and compiling.
    """

    seconds: dict
    compile_seconds: dict


def take_turns(contenders, num_turns):
    """Times contenders one after the other, again and again.

    Args:
        contenders: Dictionary from the name of each to a function without
            arguments, which returns seconds of what it did: see `timed`.
        num_turns: Integer, how often each has its turn, after a first one that
            does not count. Who raises `CannotRunError` in it is left out.

    Returns:
        `Times`.

    Raises:
        ValueError: If there are none.

    Example:

    >>> contenders = {"one": lambda: [1.0], "two": lambda: [2.0, 2.0]}
    >>> take_turns(contenders, 3).seconds
    {'one': 1.0, 'two': 2.0}
    """
    firsts = {}
    for name, contender in contenders.items():
        try:
            firsts[name], _ = _turn(contender)
        except CannotRunError as error:
            print(f"{name} is left out: {error}")
    if not firsts:
        raise ValueError(
            "`contenders` must have one that can be run. Received: "
            f"{list(contenders)}"
        )
    turns = {name: [] for name in firsts}
    for _ in range(num_turns):
        for name in turns:
            turns[name].append(_turn(contenders[name]))
    seconds, compile_seconds = {}, {}
    for name, of_contender in turns.items():
        whole, parts = zip(*of_contender, strict=True)
        seconds[name] = float(np.median(np.concatenate(parts)))
        later = float(np.median(whole))
        compile_seconds[name] = max(0.0, firsts[name] - later)
    return Times(seconds, compile_seconds)


def _turn(contender):
    """Seconds of a turn, and of what was done in it."""
    start = time.perf_counter()
    seconds = contender()
    return time.perf_counter() - start, seconds


def timed(call, num_calls):
    """A contender that makes calls.

    Args:
        call: Function without arguments; it returns when all is done.
        num_calls: Integer, how many calls are a turn.

    Returns:
        Function without arguments, for `take_turns`.
    """
    return lambda: time_items(call() for _ in range(num_calls))


def time_items(items):
    """Seconds between items; the first comes with what was set up for all."""
    times = [time.perf_counter()]
    times.extend(time.perf_counter() for _ in items)
    return np.diff(times)[1:] if len(times) > 2 else np.diff(times)
