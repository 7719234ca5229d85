"""The number of steps of a run, and its schedule, as that number changes."""

import time

import keras
import tensorflow as tf
from keras import ops


class RunPlan(keras.optimizers.schedules.LearningRateSchedule):
    """Stretches a schedule of `max_steps` updates over those that a run has.

    After `t` updates the rate is what the schedule gives at

        place + pace (t - first)

    which is `t` until `change` sets another last step. Everything that may
    change is in `variables`, which checkpoints save.
    """

    def __init__(self, schedule, max_steps):
        self._schedule = schedule
        self._planned = max_steps
        self.variables = {
            name: tf.Variable(value, dtype=dtype, trainable=False)
            for name, value, dtype in (
                ("first", 0, tf.int64),
                ("place", 0.0, tf.float32),
                ("pace", 1.0, tf.float32),
                ("last_step", max_steps, tf.int64),
                # The time that training may take, 0 for any, and has taken.
                ("budget", 0.0, tf.float64),
                ("seconds", 0.0, tf.float64),
            )
        }
        self._counted = None  # the time until which `seconds` are counted

    def __call__(self, step):
        return self._schedule(self._place(step))

    def _place(self, updates):
        first, place, pace = (
            ops.cast(self.variables[name], "float32")
            for name in ("first", "place", "pace")
        )
        return place + pace * (ops.cast(updates, "float32") - first)

    @property
    def last_step(self):
        """Returns the last step of the run."""
        return int(self.variables["last_step"].numpy())

    def count_seconds(self):
        """Counts the time since the last call; the first starts the clock."""
        now = time.monotonic()
        if self._counted is not None:
            self.variables["seconds"].assign_add(now - self._counted)
        self._counted = now

    def change(self, updates, step, last_step, begins_again=False):
        """Sets the last step after `step`; the rate still ends as planned."""
        # With `begins_again` a run goes back to where one of `last_step` steps
        # would be in the schedule. A finished run, whose rate may be 0, would
        # learn nothing otherwise.
        place = float(self._place(updates))
        if begins_again:
            place = min(place, self._planned * step / last_step)
        changed = {
            "first": updates,
            "place": place,
            "pace": (self._planned - place) / (last_step - step),
            "last_step": last_step,
        }
        for name, value in changed.items():
            self.variables[name].assign(value)

    def get_config(self):
        return {"schedule": self._schedule, "max_steps": self._planned}
