"""Tests that `--minutes` chooses the steps of a run and keeps to the time."""

import types

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.scripts import run_length
from txl_keras.training import run_plan
from txl_keras.training.run_plan import RunPlan
from txl_keras.training.schedules import build_schedule


def test_the_slowest_worker_decides_how_long_a_step_takes(monkeypatch):
    lengths = []
    trainer = types.SimpleNamespace(
        strategy=None, train=lambda _, num_steps: lengths.append(num_steps)
    )
    feed = types.SimpleNamespace(next=lambda num_steps: None)
    # Nanoseconds of this worker, which takes no time, and of another one.
    monkeypatch.setattr(
        run_length,
        "gather_integers",
        lambda _, value: np.array([value, 1_500_000_000]),
    )
    assert run_length._seconds_per_step(trainer, feed) == 1.5
    # The first step compiles. Four seconds are timed.
    assert lengths == [1, 1, 1, 1]


class Machine:
    """A clock, and a run on a machine whose steps take `cost(step)` seconds."""

    def __init__(self, monkeypatch, minutes, planned, cost, epoch=1e9):
        self.now = 0.0
        monkeypatch.setattr(
            run_plan, "time", types.SimpleNamespace(monotonic=lambda: self.now)
        )
        monkeypatch.setattr(
            run_length, "FLAGS", types.SimpleNamespace(eval_every=500)
        )
        self.cost, self.step = cost, 0
        self.planned, self.budget = planned, 60 * minutes
        self.plan = self.new_plan()
        self.plan.variables["budget"].assign(self.budget)
        self.segments = types.SimpleNamespace(steps_per_epoch=epoch)
        self.changes = 0

    def new_plan(self):
        schedule = build_schedule("cosine", 0.1, self.planned)
        return RunPlan(schedule, self.planned)

    def run(self, until=np.inf):
        """Runs as `TrainingLoop` does; a process begins by compiling."""
        saved, self.plan = self.plan.variables, self.new_plan()
        for name, variable in saved.items():
            self.plan.variables[name].assign(variable)
        self.plan.count_seconds()
        iterations = types.SimpleNamespace(numpy=lambda: self.step)
        trainer = types.SimpleNamespace(
            strategy=None,
            optimizer=types.SimpleNamespace(iterations=iterations),
        )
        pace = run_length.Pace(self.plan, trainer, self.segments)
        compiling = 8.0
        while self.step < min(self.plan.last_step, until):
            steps = min(20, self.plan.last_step - self.step)
            seconds = compiling + steps * self.cost(self.step)
            compiling = 0.0
            self.now += seconds
            self.step += steps
            self.plan.count_seconds()
            self.changes += bool(pace(self.step))
            if self.step % 500 == 0:
                self.now += 40 * self.cost(self.step)  # scores
        return self.now


@pytest.mark.parametrize(
    "cost",
    [
        lambda step: 0.05,
        lambda step: 0.05 if step < 1200 else 0.15,
        lambda step: 0.15 if step < 300 else 0.05,
        lambda step: 0.05 if step // 400 % 2 else 0.12,
        lambda step: 0.01,
        lambda step: 0.5,
        lambda step: 0.05 * (1 + step / 1000),
    ],
    ids=[
        "steady", "three times slower", "faster", "by turns", "five times "
        "faster", "ten times slower", "slower and slower",
    ],
)  # fmt: skip
@pytest.mark.parametrize("minutes", [2.7, 9.0])
def test_a_run_keeps_to_its_minutes_on_any_machine(minutes, cost, monkeypatch):
    planned = int(60 * minutes / 0.053)
    machine = Machine(monkeypatch, minutes, planned, cost)
    assert machine.run() == pytest.approx(machine.budget, rel=0.1)
    assert float(machine.plan(machine.step)) == pytest.approx(0, abs=1e-6)


def test_what_was_right_is_not_changed(monkeypatch):
    machine = Machine(monkeypatch, 9.0, 9900, lambda step: 0.05)
    machine.run()
    assert machine.changes == 0
    assert machine.step == 9900


def test_a_run_that_resumes_has_the_time_that_was_left(monkeypatch):
    machine = Machine(monkeypatch, 5.0, 5600, lambda step: 0.05)
    machine.run(until=2000)
    machine.now += 1e4  # nobody trains
    assert machine.run() - 1e4 == pytest.approx(300, rel=0.1)


def test_a_short_text_is_not_read_for_longer_than_it_is_worth(monkeypatch):
    machine = Machine(monkeypatch, 9.0, 4000, lambda step: 0.01, epoch=100)
    machine.run()
    assert machine.step == 4000  # 40 epochs


def test_without_minutes_the_time_is_only_counted(monkeypatch):
    machine = Machine(monkeypatch, 0.0, 900, lambda step: 0.5)
    assert machine.run() == pytest.approx(900 * 0.5 + 8 + 20)
    assert machine.step == 900
    assert float(machine.plan.variables["seconds"].numpy()) > 450


@pytest.mark.parametrize("minutes", [12, 12.3])
def test_minutes_that_were_asked_for_before_change_nothing(minutes):
    plan = RunPlan(build_schedule("cosine", 0.1, 500), 500)
    plan.variables["seconds"].assign(90.0)
    numbers = {
        "step": types.SimpleNamespace(numpy=lambda: 200),
        "optimizer": types.SimpleNamespace(
            iterations=types.SimpleNamespace(numpy=lambda: 200)
        ),
        "strategy": tf.distribute.get_strategy(),
    }
    trainer, removed = types.SimpleNamespace(**numbers), []
    workdir = types.SimpleNamespace(remove_results=lambda: removed.append(1))
    found = []
    for _ in range(2):
        run_length.extend({"minutes": minutes}, trainer, plan, workdir)
        found.append((plan.last_step, len(removed)))
    # As many as fit in 0.9 of them, at 0.45 s per step.
    assert found[0] == (pytest.approx(2 * 60 * minutes, abs=1), 1)
    assert found[1] == found[0]
