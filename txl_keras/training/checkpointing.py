"""What a run must keep to go on as if it had never stopped."""

import os

import numpy as np
import tensorflow as tf
from absl import logging

from txl_keras.checks import check_integer
from txl_keras.models.weights import weights_by_name


class MemoryCheckpoint(tf.__internal__.tracking.Trackable):
    """Saves the memory of all replicas, row by row in the order of the batch.

    A plain `tf.train.Checkpoint` would write the memory of the first replica
    and restore it to all. Restoring to another number of replicas works as
    long as the global batch is the same.

    Args:
        stack: `MemoryStack` made in the scope of `strategy`.
        strategy: The `tf.distribute.Strategy`.
    """

    def __init__(self, stack, strategy):
        super().__init__()
        self._stack = stack
        self._strategy = strategy

    def _replica_values(self, variable):
        return self._strategy.experimental_local_results(variable)

    def _serialize_to_tensors(self):
        return {
            f"memory_{i}": tf.concat(
                [value.read_value() for value in self._replica_values(v)], 0
            )
            for i, v in enumerate(self._stack.state_variables)
        }

    def _restore_from_tensors(self, restored_tensors):
        for i, variable in enumerate(self._stack.state_variables):
            replicas = self._replica_values(variable)
            parts = tf.split(restored_tensors[f"memory_{i}"], len(replicas))
            for replica, part in zip(replicas, parts, strict=True):
                replica.assign(part)


class Checkpoints:
    """The checkpoints of a run: weights, optimizer, step and memory.

    Data, schedule and dropout are functions of the step, so nothing else is
    needed.

    Args:
        directory: String.
        trainer: The `Trainer` to save and restore.
        max_to_keep: Integer, how many to keep.
    """

    def __init__(self, directory, trainer, max_to_keep=2):
        self._trainer = trainer
        self._checkpoint = tf.train.Checkpoint(
            weights=weights_by_name(trainer.model),
            optimizer=trainer.optimizer,
            step=trainer.step,
            memory=MemoryCheckpoint(trainer.memory, trainer.strategy),
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            directory,
            max_to_keep,
            step_counter=trainer.step,
        )

    @property
    def latest(self):
        """Path of the newest checkpoint, or `None`."""
        return self._manager.latest_checkpoint

    def save(self):
        """Writes a checkpoint of the step that was reached."""
        self._manager.save(checkpoint_number=int(self._trainer.step.numpy()))

    def restore(self):
        """Restores the newest checkpoint that is whole, if there is any.

        Returns:
            Integer, the step to go on from; 0 for a fresh run.

        Raises:
            ValueError: If there are checkpoints, and none can be read.
        """
        if _exist(self._manager.directory):
            _restore_newest(self._checkpoint, self._manager.directory)
        return int(self._trainer.step.numpy())


def restore_weights(model, directory):
    """Restores the newest weights of a run, without optimizer and memory.

    Args:
        model: The model, of the run's configuration.
        directory: String, the run's checkpoints.

    Returns:
        Integer, the step they were saved at.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If there are some, and none can be read.
    """
    if not _exist(directory):
        raise FileNotFoundError(
            f"No checkpoint in {directory}: train first, with "
            "`python train/main.py`."
        )
    checkpoint = _weights_checkpoint(model)
    _restore_newest(checkpoint, directory, partly=True)
    return int(checkpoint.step.numpy())


def save_weights(model, directory, step=0):
    """Writes weights where `restore_weights` finds them.

    Args:
        model: The model.
        directory: String.
        step: Integer, the step they are of.
    """
    checkpoint = _weights_checkpoint(model, step)
    checkpoint_manager = tf.train.CheckpointManager(
        checkpoint, directory, max_to_keep=None
    )
    checkpoint_manager.save(checkpoint_number=step)


def average_weights(model, directory, num_checkpoints=None):
    """Gives a model the mean of a run's newest checkpoints.

    As the `avg_checkpoints` of the original code does: every weight is the
    mean of its values. Sums are kept in float64.

    Args:
        model: The model, of the run's configuration.
        directory: String, the run's checkpoints.
        num_checkpoints: Optional integer, how many; by default all.

    Returns:
        List of integers, the steps that were averaged.

    Raises:
        ValueError: If there are fewer checkpoints, or one cannot be read.
    """
    state = tf.train.get_checkpoint_state(directory)
    paths = list(state.all_model_checkpoint_paths) if state else []
    if num_checkpoints is not None:
        check_integer("num_checkpoints", num_checkpoints, 1)
    if not paths:
        raise ValueError(f"There are no checkpoints in {directory}.")
    if len(paths) < (num_checkpoints or 1):
        raise ValueError(
            f"`num_checkpoints` must be at most {len(paths)}, as many as there "
            f"are in {directory}; train with a higher --max_to_keep for more. "
            f"Received: num_checkpoints={num_checkpoints}"
        )
    paths = paths[-(num_checkpoints or 0) :]
    steps = []
    sums = [np.zeros(weight.shape) for weight in model.weights]
    for path in paths:
        checkpoint = _weights_checkpoint(model)
        _restore(checkpoint, path, partly=True)
        steps.append(int(checkpoint.step.numpy()))
        for total, weight in zip(sums, model.weights, strict=True):
            total += weight.numpy()
    for total, weight in zip(sums, model.weights, strict=True):
        weight.assign(total / len(paths))
    return steps


def _weights_checkpoint(model, step=0):
    return tf.train.Checkpoint(
        weights=weights_by_name(model),
        step=tf.Variable(step, dtype=tf.int64, trainable=False),
    )


def _exist(directory):
    return bool(tf.io.gfile.glob(os.path.join(directory, "ckpt-*.index")))


def _restore(checkpoint, path, partly):
    try:
        status = checkpoint.restore(path)
        status.assert_existing_objects_matched()
        if partly:
            status.expect_partial()
        else:
            status.assert_consumed()
    # What a missing, a cut and a foreign file raise.
    except (
        tf.errors.OpError,
        IndexError,
        AssertionError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{path} is damaged or of another model: {error}"
        ) from error


def _restore_newest(checkpoint, directory, partly=False):
    """Restores the newest checkpoint; a damaged one gives way, loudly."""
    state = tf.train.get_checkpoint_state(directory)
    paths = list(state.all_model_checkpoint_paths) if state else []
    for path in reversed(paths):
        try:
            _restore(checkpoint, path, partly)
            return
        except ValueError as error:
            logging.error("%s Trying the one before.", error)
    raise ValueError(
        f"No checkpoint in {directory} can be read"
        + (": " if paths else ": the file `checkpoint` there is missing; ")
        + "bring back a copy of the folder, or begin again with another "
        "--workdir."
    )
