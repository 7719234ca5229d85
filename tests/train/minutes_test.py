import types

import numpy as np

from txl_keras.scripts import minutes


def test_the_slowest_worker_decides_how_long_a_step_takes(monkeypatch):
    lengths = []
    trainer = types.SimpleNamespace(
        strategy=None, train=lambda _, num_steps: lengths.append(num_steps)
    )
    feed = types.SimpleNamespace(next=lambda num_steps: None)
    # Nanoseconds of this worker, which takes no time, and of another one.
    monkeypatch.setattr(
        minutes,
        "gather_integers",
        lambda _, value: np.array([int(value()), 1_500_000_000]),
    )
    assert minutes._seconds_per_step(trainer, feed) == 1.5
    # The first step compiles. Four seconds are timed.
    assert lengths == [1, 1, 1, 1]
