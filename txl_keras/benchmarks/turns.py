"""Times of contenders that take turns.

Times of a shared machine come and go; of what runs in turns ratios stay.
"""

import resource
import time

import numpy as np


def take_turns(contenders, num_turns):
    """Times contenders one after the other, again and again.

    Args:
        contenders: Dictionary from the name of each to a function without
            arguments, which returns seconds of what it did: see `timed`.
        num_turns: Integer, how often each has its turn.

    Returns:
        Dictionary of the median seconds of each, after a first turn that does
        not count.

    Example:

    >>> take_turns({"one": lambda: [1.0], "two": lambda: [2.0, 2.0]}, 3)
    {'one': 1.0, 'two': 2.0}
    """
    seconds = {name: [] for name in contenders}
    for turn in range(num_turns + 1):
        for name, contender in contenders.items():
            times = contender()
            if turn:
                seconds[name].extend(times)
    return {name: float(np.median(times)) for name, times in seconds.items()}


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


def print_times(seconds, unit):
    """Prints milliseconds, and how many times those of the first one.

    Args:
        seconds: Dictionary, what `take_turns` returned.
        unit: String, such as `"ms a token"`.
    """
    ours = next(iter(seconds.values()))
    for name, value in seconds.items():
        print(f"{name:20} {1e3 * value:10.2f} {unit} {value / ours:8.2f} x")


def peak_mebibytes():
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
