"""What is written when; that a kill changes nothing is in conformance/."""

import json
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
from factories import seed_weights
from factories import small_model
from factories import trainer_rewinder

from txl_keras.data import Segments
from txl_keras.optimizers import build_optimizer
from txl_keras.training import checkpointing
from txl_keras.training import loop as loops
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.stopping import StopRequest
from txl_keras.training.trainer import Trainer
from txl_keras.workdir import Workdir

SETTINGS = {
    "max_steps": 12,
    "eval_every": 4,
    "checkpoint_every": 6,
    "steps_per_execution": 5,
}


class Run:
    """A tiny run in a folder, scored by what it is told."""

    def __init__(self, trainer, path, nlls, **settings):
        self.trainer, self.stop = trainer, StopRequest()
        path.mkdir(exist_ok=True)
        config = {
            "class_name": type(trainer.model).__name__,
            "config": trainer.model.get_config(),
            "training": {},
        }
        (path / "config.json").write_text(json.dumps(config))
        self.workdir = Workdir(str(path))
        self.scores = iter(nlls)
        self.drawn = []
        tokens = np.arange(300) ** 2 % 7
        settings = {**SETTINGS, **settings}
        self.loop = TrainingLoop(
            self.trainer,
            settings.pop("max_steps"),
            Segments(tokens, 2, 4, drop_remainder=True),
            self.validate,
            self.workdir,
            self.stop,
            **settings,
            describe=lambda *_: "",
            on_score=(self.on_score,),
        )

    def go(self):
        """Restores and runs; returns the step it began with, and the result."""
        return self.loop.restore(), self.loop.run()

    def on_score(self, loop, step):
        assert loop is self.loop
        assert self.steps("valid")[-1] == step
        self.drawn.append(step)

    def validate(self):
        """The next score; `None` for a stop in the middle of it."""
        nll = next(self.scores)
        if nll is None:
            self.stop.signal = signal.SIGTERM
            return None
        return {"nll": nll}

    def steps(self, key):
        lines = self.workdir.read_metrics()
        return [line["step"] for line in lines if key in line]


@pytest.fixture(scope="module")
def rewind():
    seed_weights(3)
    trainer = Trainer(
        small_model(num_layers=1, memory_length=3),
        build_optimizer("sgd", 0.01),
        tf.distribute.get_strategy(),
        batch_size=2,
    )
    return trainer_rewinder(trainer)


@pytest.fixture
def begin(rewind):
    """Function that makes a run as a new process would, at step 0."""
    return lambda *args, **settings: Run(rewind(), *args, **settings)


def test_lines_scores_and_checkpoints_come_where_they_are_due(begin, tmp_path):
    run = begin(tmp_path, [3.0, 1.0, 2.0])
    assert run.go() == (0, True)
    assert run.steps("loss") == [4, 5, 6, 8, 10, 12]
    assert run.steps("valid") == run.drawn == [4, 8, 12]
    assert saved_steps(run.workdir.checkpoints) == [6, 12]
    # The second score was the best.
    assert run.workdir.best_step() == 8
    assert run.loop.score_at(8) == {"nll": 1.0}


def test_weights_of_a_start_may_stay_the_best(begin, tmp_path):
    nlls = [1.5, 3.0, 1.6, 2.0]
    run = begin(tmp_path / "run", nlls, scores_start=True)
    assert run.go() == (0, True)
    assert run.steps("valid") == run.drawn == [0, 4, 8, 12]
    assert run.workdir.best_step() == 0
    # Killed after it, before the first checkpoint: it is not scored again.
    assert not begin(tmp_path / "killed", [1.5, None], scores_start=True).go()[
        1
    ]
    shutil.rmtree(tmp_path / "killed" / "checkpoints")
    again = begin(tmp_path / "killed", nlls[1:], scores_start=True)
    assert again.go() == (0, True)
    assert again.workdir.read_metrics() == run.workdir.read_metrics()


def test_a_stop_between_two_calls_loses_nothing(begin, tmp_path, monkeypatch):
    whole = begin(tmp_path / "whole", [3.0, 1.0, 2.0])
    assert whole.go() == (0, True)
    # On a slow machine each call runs one step.
    monkeypatch.setattr(loops, "_MOST_SECONDS", 0)
    run = begin(tmp_path / "run", [3.0])
    train = run.trainer.train

    def stop_in_step_6(feed, num_steps):
        assert num_steps == 1
        if run.trainer.step.numpy() == 6:
            run.stop.signal = signal.SIGTERM
        return train(feed, num_steps)

    monkeypatch.setattr(run.trainer, "train", stop_in_step_6)
    assert run.go() == (0, False)
    assert saved_steps(run.workdir.checkpoints) == [6, 7]
    assert run.steps("loss") == [4, 5, 6]
    monkeypatch.undo()
    run = begin(tmp_path / "run", [1.0, 2.0])
    assert run.go() == (7, True)
    # Bit for bit, the mean over steps 7 and 8 among them.
    assert run.workdir.read_metrics() == whole.workdir.read_metrics()


def test_a_worker_that_is_not_the_chief_shows_and_writes_nothing(
    begin, tmp_path, monkeypatch, capsys
):
    for module in (loops, checkpointing):
        monkeypatch.setattr(module, "is_chief", lambda _: False)
    run = begin(tmp_path, [3.0, 1.0, 2.0])
    assert run.go() == (0, True)
    assert not run.drawn
    assert {path.name for path in tmp_path.iterdir()} == {"config.json"}
    assert capsys.readouterr().out == ""
    assert not hasattr(run.loop, "progress")


def test_a_folder_that_goes_away_ends_the_run(begin, tmp_path):
    path = tmp_path / "run"

    def scores():
        path.rename(tmp_path / "away")
        yield 3.0

    with pytest.raises(FileNotFoundError, match=f"{path} is missing"):
        begin(path, scores()).go()


def test_best_weights_that_were_removed_give_way_to_the_next(begin, tmp_path):
    first = begin(tmp_path, [3.0, None])
    assert first.go() == (0, False)
    assert first.steps("valid") == [4]
    shutil.rmtree(first.workdir.model)
    second = begin(tmp_path, [3.2, 3.1])  # worse, but what there is
    assert second.loop.restore() == 8
    assert second.loop.run()
    assert second.workdir.best_step() == 12
    # Later scores have to beat that of the weights that are kept.
    third = begin(tmp_path, [3.15, 3.05], max_steps=20)
    assert third.go() == (12, True)
    assert third.steps("valid") == [4, 8, 12, 16, 20]
    assert third.workdir.best_step() == 20
    # At the last step there is no next score.
    shutil.rmtree(third.workdir.model)
    fourth = begin(tmp_path, [3.3], max_steps=20)
    assert fourth.go() == (20, True)
    assert fourth.workdir.best_step() == 20


def test_best_weights_are_written_before_the_line_of_a_repeated_score(
    begin, tmp_path, monkeypatch
):
    def fail(*args):
        raise OSError("the disk is full")

    assert begin(tmp_path, [3.0, None]).go() == (0, False)
    with monkeypatch.context() as patch:
        patch.setattr(Workdir, "save_best", fail)
        second = begin(tmp_path, [1.0, 2.0])
    with pytest.raises(OSError, match="the disk is full"):
        second.go()
    third = begin(tmp_path, [1.0, 2.0])
    assert third.go() == (8, True)
    assert third.workdir.best_step() == 8


def test_a_loss_that_runs_away_stops_the_run(begin, tmp_path):
    run = begin(tmp_path, [])
    run.trainer.optimizer.learning_rate = 3e4
    with pytest.raises(
        FloatingPointError, match="(diverged|loss is).*none yet"
    ):
        run.go()


def test_a_score_that_is_not_finite_stops_the_run(begin, tmp_path):
    run = begin(tmp_path, [float("nan")])
    with pytest.raises(FloatingPointError, match="loss is nan at step 4"):
        run.go()
    assert run.steps("valid") == []
