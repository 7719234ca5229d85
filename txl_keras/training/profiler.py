"""Profiler traces of some training steps, for TensorBoard."""

import math
import re

import tensorflow as tf


class Profile:
    """Traces the steps after FIRST up to LAST; `profile_steps="FIRST,LAST"`."""

    # TensorBoard (with tensorboard-plugin-profile) finds the trace in
    # `plugins/profile`. A run that resumes in between traces the remaining
    # steps.

    def __init__(self, directory, profile_steps=None, max_steps=None):
        self._directory = directory
        self._first = self._last = 0
        self._is_running = False
        if profile_steps is None:
            return
        match = re.fullmatch(r"(\d+),(\d+)", profile_steps)
        self._first, self._last = map(int, match.groups() if match else (0, 0))
        if self._first >= self._last or self._last > (max_steps or math.inf):
            raise ValueError(
                "`profile_steps` must be FIRST,LAST: two integers, the first "
                "smaller, such as 100,110, up to `max_steps`. Received: "
                f"profile_steps={profile_steps!r}, max_steps={max_steps}"
            )

    def next_boundary(self, step):
        """Returns the next step at which the trace starts or stops, if any."""
        for boundary in (self._first, self._last):
            if step < boundary:
                return boundary
        return None

    def update(self, step):
        """Starts or stops the trace if `step` is the step to do so."""
        is_inside = self._first <= step < self._last
        if is_inside and not self._is_running:
            tf.profiler.experimental.start(self._directory)
            self._is_running = True
        elif not is_inside:
            self.close()

    def close(self):
        """Stops a running trace and writes it."""
        if self._is_running:
            tf.profiler.experimental.stop()
            self._is_running = False
