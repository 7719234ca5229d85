"""Timing of contenders that take turns.

On a shared machine times vary from minute to minute; ratios between contenders
that take turns vary much less.
"""

import time
import typing

import numpy as np


class CannotRunError(RuntimeError):
    """Reports that a contender cannot run on this machine."""


class Times(typing.NamedTuple):
    """Holds the times of contenders, as dictionaries by name."""

    # `seconds` are medians of the seconds that a contender returned, and
    # `spread` the least and the greatest; `compile_seconds` is the first turn
    # less a median one, the time for tracing and compiling.

    seconds: dict
    spread: dict
    compile_seconds: dict


def take_turns(contenders, num_turns):
    """Times contenders in turns and returns their `Times`."""
    # A first turn of each does not count; a contender that raises
    # `CannotRunError` in it is skipped.
    firsts = {}
    for name, contender in contenders.items():
        try:
            firsts[name], _ = _turn(contender)
        except CannotRunError as error:
            print(f"Skipping {name}, which cannot run here: {error}")
    if not firsts:
        raise ValueError(
            "`contenders` must include one that can run here. Received: "
            f"{list(contenders)}"
        )
    turns = {name: [] for name in firsts}
    for _ in range(num_turns):
        for name in turns:
            turns[name].append(_turn(contenders[name]))
    seconds, spread, compile_seconds = {}, {}, {}
    for name, results in turns.items():
        whole, parts = zip(*results, strict=True)
        calls = np.concatenate(parts)
        seconds[name] = float(np.median(calls))
        spread[name] = [float(calls.min()), float(calls.max())]
        later = float(np.median(whole))
        compile_seconds[name] = max(0.0, firsts[name] - later)
    return Times(seconds, spread, compile_seconds)


def _turn(contender):
    """Returns the seconds of a whole turn, and those the contender returned."""
    start = time.perf_counter()
    seconds = contender()
    return time.perf_counter() - start, seconds


def timed(call, num_calls):
    """Returns a contender that times `num_calls` blocking calls per turn."""
    return lambda: time_items(call() for _ in range(num_calls))


def time_items(items):
    """Returns seconds per item, without the first, which includes set-up."""
    times = [time.perf_counter()]
    times.extend(time.perf_counter() for _ in items)
    return np.diff(times)[1:] if len(times) > 2 else np.diff(times)
