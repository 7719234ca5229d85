"""Shows how far a run is: a bar on a terminal, else a line a minute."""

import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 60


class Progress:
    """Progress of training.

    Args:
        step: Integer, where the run starts or resumes.
        max_steps: Integer.
        tokens_per_step: Integer.
    """

    def __init__(self, step, max_steps, tokens_per_step):
        self._tokens_per_step = tokens_per_step
        self._is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            initial=step,
            total=max_steps,
            unit="step",
            dynamic_ncols=True,
            disable=not self._is_terminal,
        )
        self._step = step
        self._max_steps = max_steps
        self._last_line = time.monotonic()

    def update(self, num_steps, seconds, loss, score):
        """Counts steps that are done.

        Args:
            num_steps: Integer, since the last call.
            seconds: Float, how long they took.
            loss: Float, nats a token.
            score: String, the loss in the measure of the field.
        """
        self._step += num_steps
        tokens_per_second = num_steps * self._tokens_per_step / seconds
        figures = {
            "loss": f"{loss:.3f}",
            "score": score,
            "tokens/s": f"{tokens_per_second:,.0f}",
        }
        if self._is_terminal:
            self._bar.set_postfix(figures, refresh=False)
            self._bar.update(num_steps)
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            left = (self._max_steps - self._step) * seconds / num_steps
            line = ", ".join(
                f"{name} {value}" for name, value in figures.items()
            )
            self.write(
                f"step {self._step}/{self._max_steps}: {line}, "
                f"{tqdm.format_interval(left)} left"
            )

    def write(self, line):
        """Prints a line, above the bar where there is one."""
        self._bar.write(line, file=sys.stdout)
        sys.stdout.flush()

    def close(self):
        """Leaves the bar as it stands."""
        self._bar.close()
