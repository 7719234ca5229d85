"""Progress of a run: a bar on a terminal, otherwise one line per minute."""

import sys
import time
import unicodedata

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 60
# Of a sample in a log, which has one line for it.
_MAX_LINE = 200


class Progress:
    """Shows the progress of training, unless `is_shown` is false."""

    def __init__(
        self,
        max_steps,
        tokens_per_step,
        format_train,
        format_valid,
        is_shown=True,
    ):
        self._tokens_per_step = tokens_per_step
        self._format_train = format_train
        self._format_valid = format_valid
        self._is_shown = is_shown
        self._is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=max_steps,
            unit="step",
            dynamic_ncols=True,
            disable=not (is_shown and self._is_terminal),
        )
        self._step = 0
        self._max_steps = max_steps
        self._last_line = time.monotonic()

    def start(self, step):
        """Starts the clock at the step where the run starts or resumes."""
        self._step = step
        self._last_line = time.monotonic()
        self._bar.reset()
        self._bar.initial = self._bar.n = step

    def update(self, metrics):
        """Shows `step`, `loss` (`None` if all steps were skipped) and speed."""
        loss, speed = metrics["loss"], metrics["tokens_per_second"]
        figures = {
            "loss": "none" if loss is None else f"{loss:.3f}",
            "train": "none" if loss is None else self._format_train(loss),
            "tokens/s": f"{speed:,.0f}",
        }
        num_steps, self._step = metrics["step"] - self._step, metrics["step"]
        if self._is_terminal:
            self._bar.set_postfix(figures, refresh=False)
            self._bar.update(num_steps)
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            steps_left = self._max_steps - self._step
            left = steps_left * self._tokens_per_step / speed
            line = ", ".join(
                f"{name} {value}" for name, value in figures.items()
            )
            self._write(
                f"step {self._step}/{self._max_steps}: {line}, "
                f"{tqdm.format_interval(left)} left"
            )

    def change(self, step, max_steps, words):
        """Shows that the run has another number of steps from now on."""
        self._max_steps = self._bar.total = max_steps
        self._write(f"step {step}: {words}")

    def score(self, step, nll, is_best):
        """Shows a validation score, in nats per token."""
        if not self._is_shown:  # formatting may compress the text
            return
        best = " (best)" if is_best else ""
        self._write(f"step {step}: valid {self._format_valid(nll)}{best}")

    def sample(self, step, text):
        """Shows a text of the model, in a log only its start, in one line."""
        if not self._is_terminal:
            line = " ".join(text.split())
            end = "..." if len(line) > _MAX_LINE else ""
            self._write(f"step {step}: sample: {line[:_MAX_LINE]}{end}")
            return
        self._write(f"--- A sample after step {step}\n{text}\n---")

    def _write(self, text):
        """Prints lines, above the bar if there is one."""
        if self._is_shown:
            self._bar.write(_printable(text), file=sys.stdout)
            sys.stdout.flush()

    def close(self):
        """Leaves the bar as it is."""
        self._bar.close()


def _printable(text):
    """Replaces what the terminal would execute or cannot encode."""
    text = "".join(
        "\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c
        for c in text
    )
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
