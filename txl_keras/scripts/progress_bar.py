"""Progress of a measurement: a bar on a terminal, else a line per minute."""

import contextlib
import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 60


@contextlib.contextmanager
def progress_bar(total, unit, label=None):
    """Yields an `on_progress` function of the number of `unit`s done so far."""
    first = shown = None

    def write_line(done):
        nonlocal first, shown
        now = time.monotonic()
        if first is None:
            # The clock starts here: before, an earlier process may have
            # measured a part, and functions were compiled.
            first, shown = (now, done), now
        if now - shown < _SECONDS_BETWEEN_LINES:
            return
        shown = now
        start, initial = first
        line = tqdm.format_meter(
            done, total, now - start,
            ncols=0, prefix=label or "", unit=unit, initial=initial,
        )  # fmt: skip
        print(line, file=sys.stderr, flush=True)

    with tqdm(total=total, desc=label, unit=unit, disable=None) as bar:

        def on_progress(done, *_):
            if bar.disable:
                write_line(done)
            else:
                bar.update(done - bar.n)

        yield on_progress
