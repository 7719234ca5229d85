"""Checkpoints that make resuming exact.

A checkpoint is a safetensors file with plain names:

    step               int64 scalar
    run                int64 scalar, `Workdir.run_hash`
    weights/NAME       such as weights/block_0/attention/query/kernel
    optimizer/INDEX    `optimizer.variables`, in their order
    loss_scale/...     in float16
    memory/INDEX       states and valid lengths, rows in the order of the batch
    results/NAME       of steps that are not in metrics.jsonl yet

`tf.train.Checkpoint` would silently leave out layers that a Keras 3 model keeps
in a list, and the memory of all replicas except the first.
"""

import concurrent.futures
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
from absl import logging

from txl_keras.checks import check_integer
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import remove_if_empty
from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.tensor_files import check_shapes
from txl_keras.tensor_files import first_not_finite
from txl_keras.tensor_files import read_safetensors
from txl_keras.tensor_files import shapes_of
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import is_chief
from txl_keras.weights import weights_by_name


class DamagedCheckpointError(ValueError):
    """Reports a checkpoint that cannot be read in full or contains NaN."""


class Checkpoints:
    """Saves and restores weights, optimizer, step and memory of a run.

    Data, schedule and dropout are functions of the step, so nothing else is
    needed. Saving copies the state to the host and returns; a thread writes the
    file while training continues. A checkpoint is complete or absent. With
    several workers, all must call `save`, `save_best`, `restore` and `wait`,
    and the chief writes. See `Trainer` for an example.

    Args:
        directory: String, local or in a bucket. Created if it does not exist.
        trainer: The `Trainer` to save and restore.
        max_to_keep: Integer, the number of checkpoints to keep.
        write_best: Optional function that `save_best` calls with weights by
            name and their step.
        run: Optional integer that identifies the run: `Workdir.run_hash`.
    """

    # One thread for all objects: a write ends before another one begins.
    _writer = concurrent.futures.ThreadPoolExecutor(1)

    def __init__(
        self,
        directory: str,
        trainer: Any,
        max_to_keep: int = 2,
        write_best: Callable | None = None,
        run: int | None = None,
    ):
        self._directory = directory
        self._write_best = write_best
        self._run = run
        self._trainer = trainer
        self._max_to_keep = check_integer("max_to_keep", max_to_keep, 1)
        self._is_chief = is_chief(trainer.strategy)
        self._writing = None
        # The path of the newest undamaged checkpoint, once restored or saved.
        self.latest = None
        # Everything except the memory, which differs by replica.
        self._variables = {
            "step": trainer.step,
            **weight_variables(trainer.model),
            **{
                f"optimizer/{i:04}": variable.value
                for i, variable in enumerate(trainer.optimizer.variables)
            },
        }
        if trainer.loss_scale:
            for name, variable in vars(trainer.loss_scale).items():
                self._variables[f"loss_scale/{name}"] = variable
        self._memory = {
            f"memory/{i:03}": variable
            for i, variable in enumerate(trainer.memory.state_variables)
        }

    def save(self, results: dict | None = None) -> None:
        """Writes a checkpoint of the current step.

        Args:
            results: Optional dictionary of vectors, which `restore` will
                return.

        Raises:
            OSError: If the previous checkpoint could not be written, for
                example to a full disk. Older complete checkpoints are kept.
            FloatingPointError: If the previous checkpoint had values that are
                not finite.
        """
        self.wait()
        # All workers must take part, because each holds rows of the memory.
        memory = self._gather_memory()
        if not self._is_chief:
            return
        state = copies(self._variables)
        for name, value in memory.items():
            dtype = self._memory[name].dtype.as_numpy_dtype
            state[name] = value.numpy().astype(dtype)
        for name, values in (results or {}).items():
            state[f"results/{name}"] = values
        if self._run is not None:
            state["run"] = np.int64(self._run)
        self._writing = self._writer.submit(self._write, state)

    def _write(self, state):
        write_checkpoint(self._directory, state, self._max_to_keep)
        self.latest = checkpoint_path(self._directory, state["step"])

    def save_best(self) -> None:
        """Writes the weights; replaces the previous best weights."""
        self.wait()
        if self._is_chief:
            weights = copies(weights_by_name(self._trainer.model))
            step = int(self._trainer.step.numpy())
            self._writing = self._writer.submit(self._write_best, weights, step)

    def wait(self) -> None:
        """Waits until everything is written; raises the errors of `save`."""
        if self._writing:
            writing, self._writing = self._writing, None
            writing.result()

    def remove(self) -> None:
        """Removes all checkpoints, and the folder if it is empty then."""
        self.wait()
        if self._is_chief:
            steps = saved_steps(self._directory)
            remove_checkpoints(self._directory, steps)
            remove_if_empty(self._directory)

    def restore(self, expected: dict | None = None) -> dict:
        """Restores the newest complete checkpoint, if there is any.

        Args:
            expected: Optional dictionary of the shapes of results that the
                checkpoint must have.

        Returns:
            Dictionary of the vectors that were saved with it as `results`;
            empty for a fresh run. `trainer.step` is the restored step.
        """
        if self._is_chief:
            # An interrupted `fit` of this process may still write here.
            self._writer.submit(int).result()
            remove_leftovers(self._directory)
        results = {}
        if saved_steps(self._directory):
            shapes = shapes_of(self._variables)
            for name, variable in self._memory.items():
                # The rows of all replicas; their number may have changed.
                shapes[name] = self._trainer.batch_size, *variable.shape[1:]
            for name, shape in (expected or {}).items():
                shapes[f"results/{name}"] = shape
            state = read_newest(self._directory, shapes, self._run)
            for name, variable in self._variables.items():
                variable.assign(state[name])
            self._assign_memory(state)
            results = {
                name.removeprefix("results/"): value
                for name, value in state.items()
                if name.startswith("results/")
            }
            self.latest = checkpoint_path(self._directory, state["step"])
        step = int(self._trainer.step.numpy())
        found = gather_integers(self._trainer.strategy, step)
        if len(set(found)) > 1:
            raise ValueError(
                f"All workers must see the same files in {self._directory}: "
                "give a `workdir` that they share, such as a bucket. Steps "
                f"found there, by replica: {found.tolist()}"
            )
        return results

    @tf.function
    def _gather_memory(self):
        """Returns the rows of all replicas in the order of the batch."""

        def rows():
            # TensorFlow cannot gather bfloat16; float32 holds all its values.
            return {
                n: tf.cast(v, tf.float32 if v.dtype == tf.bfloat16 else v.dtype)
                for n, v in self._memory.items()
            }

        strategy = self._trainer.strategy
        return {n: strategy.gather(v, 0) for n, v in strategy.run(rows).items()}

    def _assign_memory(self, state):
        """Assigns the saved rows, whatever the numbers of replicas."""
        strategy = self._trainer.strategy
        count = self._trainer.memory.batch_size

        def rows_of(context):
            first = context.replica_id_in_sync_group * count
            return {
                name: tf.cast(state[name][first : first + count], v.dtype)
                for name, v in self._memory.items()
            }

        def assign(rows):
            for name, variable in self._memory.items():
                variable.assign(rows[name])

        rows = strategy.experimental_distribute_values_from_function(rows_of)
        tf.function(strategy.run)(assign, args=(rows,))


# === Weights ===


def weight_variables(model):
    """Returns the weights of a model by their names in a checkpoint."""
    return {f"weights/{n}": v for n, v in weights_by_name(model).items()}


def average_weights(model, directory, run=None):
    """Sets a model to the mean of a run's checkpoints; returns their steps."""
    # Like `avg_checkpoints` in the original code, with sums in float64.
    steps = _steps_to_read(directory)
    variables = weight_variables(model)
    sums = {name: np.zeros(v.shape) for name, v in variables.items()}
    for step in steps:
        path = checkpoint_path(directory, step)
        state = _read(path, shapes_of(variables), run)
        for name, total in sums.items():
            total += state[name]
    for name, variable in variables.items():
        variable.assign(sums[name] / len(steps))
    return steps


def copies(variables):
    """Returns the values of variables by name, as independent arrays."""
    # `numpy()` may share the memory of the variable.
    return {name: np.array(v.numpy()) for name, v in variables.items()}


# === Files ===


def checkpoint_path(directory, step):
    """Returns the path of a checkpoint."""
    return os.path.join(directory, f"ckpt-{step}.safetensors")


def saved_steps(directory):
    """Returns the steps of the checkpoints in a directory, ascending."""
    pattern = r"ckpt-(\d+)\.safetensors"
    found = (re.fullmatch(pattern, name) for name in _list(directory))
    return sorted(int(match[1]) for match in found if match)


def _list(directory):
    gfile = tf.io.gfile
    return gfile.listdir(directory) if gfile.isdir(directory) else []


def write_checkpoint(directory, state, max_to_keep=None):
    """Writes a checkpoint of arrays by name, then removes old ones."""
    # `max_to_keep` checkpoints up to this step are kept. Checkpoints of later
    # steps, from before a run resumed at an earlier step, are removed.
    path = checkpoint_path(directory, state["step"])
    name = first_not_finite(state)
    if name:
        raise FloatingPointError(
            f"Not saved: {name} of step {state['step']} is not finite."
        )
    arrays = {name: np.asarray(v, order="C") for name, v in state.items()}
    try:
        tf.io.gfile.makedirs(directory)
        with renamed_when_complete(path) as unfinished:
            if is_remote(path):
                with tf.io.gfile.GFile(unfinished, "wb") as file:
                    file.write(safetensors.numpy.save(arrays))
            else:
                safetensors.numpy.save_file(arrays, unfinished)
    except (OSError, safetensors.SafetensorError, tf.errors.OpError) as error:
        kept = ", ".join(map(str, saved_steps(directory))) or "none"
        raise OSError(
            f"The checkpoint {path} could not be written: {error}. Is the "
            f"disk full? Whole checkpoints there, by step: {kept}."
        ) from error
    if max_to_keep is not None:
        steps = saved_steps(directory)
        kept = [step for step in steps if step <= state["step"]][-max_to_keep:]
        remove_checkpoints(directory, set(steps) - set(kept))


def remove_checkpoints(directory, steps):
    """Removes the checkpoints of some steps."""
    for step in steps:
        tf.io.gfile.remove(checkpoint_path(directory, step))


def remove_leftovers(directory):
    """Removes the unfinished files of a killed process."""
    for name in _list(directory):
        if re.fullmatch(r"[0-9a-f]{32}\.tmp", name):
            tf.io.gfile.remove(os.path.join(directory, name))


def read_newest(directory, shapes, run=None):
    """Reads the newest complete checkpoint; logs an error for a damaged one."""
    errors = []
    for step in reversed(_steps_to_read(directory)):
        try:
            state = _read(checkpoint_path(directory, step), shapes, run)
        except DamagedCheckpointError as error:
            errors.append(str(error))
            continue
        for error in errors:
            logging.error("%s. Step %d is taken instead.", error, step)
        return state
    raise DamagedCheckpointError(
        f"No checkpoint in {directory} can be read. {errors[0]}. Bring back a "
        "copy of the folder, or begin again with another --workdir."
    )


def _steps_to_read(directory):
    steps = saved_steps(directory)
    if not steps:
        raise FileNotFoundError(
            f"No checkpoint in {directory}: train first, with `txl train`."
        )
    return steps


def _read(path, shapes, run=None):
    """Reads the tensors named in `shapes`, and the saved results."""
    try:
        tensors = read_safetensors(path)
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    check_shapes(path, tensors.shapes, shapes)
    state = {
        name: tensors.read(name)
        for name in tensors
        if name in shapes or re.match("run$|results/", name)
    }
    # Converted weights do not belong to a run.
    if run is not None and state.get("run", run) != run:
        raise ValueError(
            f"{path} is of another run: it was saved under another "
            "configuration than the config.json beside its folder. Bring back "
            "the files of one run."
        )
    name = first_not_finite(state)
    if name:
        raise DamagedCheckpointError(f"{path} is damaged: {name} is not finite")
    return state
