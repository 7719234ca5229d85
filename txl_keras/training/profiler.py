"""Traces some steps of training, to see where their time goes."""

import re

import tensorflow as tf


class Profile:
    """Traces the steps of a run from one to another.

    The trace lies in `plugins/profile` of the directory, where TensorBoard
    finds it (with the package tensorboard-plugin-profile). The training loop
    ends its executions at `next_boundary` and calls `update` between them.

    Args:
        directory: String, a folder or `gs://...`.
        profile_steps: Optional string `"FIRST,LAST"`: the steps after FIRST,
            up to LAST, are traced. A run that resumes between them traces
            what is left. `None` traces nothing.
        max_steps: Optional integer, the last step of the run.

    Raises:
        ValueError: If these are not two integers, the first one less, or the
            run ends before.

    Example:

    >>> profile = Profile("trace", "100,110")
    >>> profile.next_boundary(20)
    100
    >>> profile.next_boundary(100)
    110
    >>> profile.next_boundary(110) is None
    True
    """

    def __init__(self, directory, profile_steps=None, max_steps=None):
        self._directory = directory
        self._first = self._last = 0
        self._is_running = False
        if profile_steps is not None:
            self._first, self._last = _parse(profile_steps)
        if max_steps is not None and self._last > max_steps:
            raise ValueError(
                "`profile_steps` must end at `max_steps` or before. Received: "
                f"profile_steps={profile_steps!r}, max_steps={max_steps}"
            )

    def next_boundary(self, step):
        """Where an execution has to end.

        Args:
            step: Integer, the steps that are done.

        Returns:
            Integer, the first step after `step` at which the trace begins or
            ends; `None` where there is none left.
        """
        for boundary in (self._first, self._last):
            if step < boundary:
                return boundary
        return None

    def update(self, step):
        """Starts or stops the trace, if this is the step.

        Args:
            step: Integer, the steps that are done.
        """
        is_inside = self._first <= step < self._last
        if is_inside and not self._is_running:
            tf.profiler.experimental.start(self._directory)
            self._is_running = True
        elif not is_inside:
            self.close()

    def close(self):
        """Writes a trace that still runs."""
        if self._is_running:
            tf.profiler.experimental.stop()
            self._is_running = False


def _parse(profile_steps):
    match = re.fullmatch(r"(\d+),(\d+)", profile_steps)
    steps = [int(step) for step in match.groups()] if match else []
    if not match or steps[0] >= steps[1]:
        raise ValueError(
            "`profile_steps` must be FIRST,LAST: two integers, the first one "
            "less, such as 100,110. Received: "
            f"profile_steps={profile_steps!r}"
        )
    return steps
