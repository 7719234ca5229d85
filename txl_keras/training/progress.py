"""Progress of a run or a measurement: on a terminal, in a log, TensorBoard."""

import contextlib
import sys
import textwrap
import time
import unicodedata

import keras
import tensorflow as tf
from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 60
# Most characters of a sample in a log, where it takes one line.
_MAX_LINE = 200


class ProgressBar:
    """Shows a bar on a terminal, otherwise one line per minute."""

    _lines = "stderr"

    def __init__(self, total, unit, label=None):
        self._style = {"prefix": label or "", "unit": unit}
        self._bar = tqdm(
            total=total,
            desc=label,
            unit=unit,
            dynamic_ncols=True,
            disable=None,
        )
        self._start = None

    def update(self, done, **figures):
        """Shows the units done so far; the first call starts the clock."""
        now, bar = time.monotonic(), self._bar
        if self._start is None:
            # An earlier process did these units, so they took no time here.
            self._start, self._shown = now, now
            bar.initial = bar.n = done
        if not bar.disable:
            bar.set_postfix(figures, refresh=False)
            bar.update(done - bar.n)
        elif now - self._shown >= _SECONDS_BETWEEN_LINES:
            self._shown = now
            line = tqdm.format_meter(
                done,
                bar.total,
                now - self._start,
                ncols=0,
                initial=bar.initial,
                postfix=", ".join(f"{k}={v}" for k, v in figures.items()),
                **self._style,
            )
            print(line, file=getattr(sys, self._lines), flush=True)

    def close(self):
        """Ends the bar in its present state."""
        self._bar.close()


@contextlib.contextmanager
def progress_bar(total, unit, label=None):
    """Yields an `on_progress` function of the number of `unit`s done so far."""
    with contextlib.closing(ProgressBar(total, unit, label)) as bar:
        yield lambda done, *_: bar.update(done)


class Progress(ProgressBar):
    """Shows the progress of training."""

    _lines = "stdout"  # the log of a run

    def __init__(self, max_steps, describe):
        # `describe` formats nats per token of a split, "train" or "valid".
        super().__init__(max_steps, "step")
        self._describe = describe

    def report(self, metrics):
        """Shows `step`, `loss` (`None` if all steps were skipped) and speed."""
        figures = {"tokens/s": f"{metrics['tokens_per_second']:,.0f}"}
        loss = metrics["loss"]
        if loss is not None:
            figures["loss"] = f"{loss:.3f}"
            figures["train"] = self._describe(loss, "train")
        self.update(metrics["step"], **figures)

    def score(self, step, nll, is_best):
        """Shows a validation score, in nats per token."""
        best = " (best)" if is_best else ""
        self._write(f"step {step}: valid {self._describe(nll, 'valid')}{best}")

    def sample(self, step, text):
        """Shows generated text; a log gets only its start, in one line."""
        if self._bar.disable:
            line = " ".join(text.split())
            end = "..." if len(line) > _MAX_LINE else ""
            self._write(f"step {step}: sample: {line[:_MAX_LINE]}{end}")
            return
        self._write(f"--- A sample after step {step}\n{text}\n---")

    def _write(self, text):
        """Prints lines, above the bar if there is one."""
        self._bar.write(printable(text), file=sys.stdout)
        sys.stdout.flush()


def printable(text):
    """Replaces what the terminal would execute."""
    return "".join(
        "\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c
        for c in text
    )


class TensorBoard:
    """Writes scalars and text for TensorBoard."""

    def __init__(self, directory):
        self._writer = tf.summary.create_file_writer(directory)

    def write(self, metrics):
        """Writes the numbers of a line of metrics.jsonl, which has a `step`."""
        with self._writer.as_default(step=metrics["step"]):
            for path, value in keras.tree.flatten_with_path(metrics):
                if path != ("step",) and isinstance(value, (int, float)):
                    tf.summary.scalar("/".join(map(str, path)), value)
        self._writer.flush()

    def write_text(self, name, text, step):
        """Writes a text, shown without formatting."""
        with self._writer.as_default():
            # TensorBoard renders Markdown, in which this is a code block.
            block = textwrap.indent(text, "    ", lambda line: True)
            tf.summary.text(name, block, step)
        self._writer.flush()
