"""Checkpoints that make resuming exact.

A checkpoint is a TensorFlow bundle (`tf.train.load_checkpoint` reads it) of
plain names:

    step               int64 scalar
    run                int64 scalar, `Workdir.run_hash`
    weights/NAME       such as weights/block_0/attention/query/kernel
    optimizer/INDEX    `optimizer.variables`, in their order
    loss_scale/...     in float16
    plan/NAME          `RunPlan.variables`, if there is a plan
    memory/INDEX       states and valid lengths, rows in the order of the batch
    results/NAME       of steps that are not in metrics.jsonl yet

`tf.train.Checkpoint` would silently leave out the layers that a Keras 3 model
keeps in a list, and the memory of all replicas but the first.

Letters: `B` batch over all replicas.
"""

import concurrent.futures
import functools
import os

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_no_pattern
from txl_keras.missing_folder import when_present
from txl_keras.training.bundles import checkpoint_path
from txl_keras.training.bundles import copies
from txl_keras.training.bundles import read_newest
from txl_keras.training.bundles import remove_checkpoints
from txl_keras.training.bundles import remove_leftovers
from txl_keras.training.bundles import run_state
from txl_keras.training.bundles import saved_steps
from txl_keras.training.bundles import shapes_of
from txl_keras.training.bundles import weight_variables
from txl_keras.training.bundles import weights_state
from txl_keras.training.bundles import write_checkpoint
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import is_chief


class Checkpoints:
    """Saves and restores weights, optimizer, step and memory of a run.

    Data, schedule and dropout are functions of the step, so nothing else is
    needed. Saving copies the state to the host and returns; a thread writes the
    file while training goes on. A checkpoint is complete or absent: its index
    is written last. With several workers, all must call `save`, `save_best`,
    `restore` and `wait`, and the chief writes. See `Trainer` for an example.

    Args:
        directory: String, local or in a bucket. Created if it does not exist.
        trainer: The `Trainer` to save and restore.
        max_to_keep: Integer, the number of checkpoints to keep.
        best_directory: Optional string, where `save_best` writes.
        run: Optional integer that identifies the run: `Workdir.run_hash`. Then
            writing waits while the config.json of the run, beside `directory`,
            is missing.
        plan: Optional `RunPlan`, to save and restore.

    Raises:
        ValueError: If a directory has one of `*?[]` in its path, which
            TensorFlow reads as a pattern of other paths.
    """

    # One thread for all objects: a write ends before another one begins.
    _writer = concurrent.futures.ThreadPoolExecutor(1)

    def __init__(
        self,
        directory,
        trainer,
        max_to_keep=2,
        best_directory=None,
        run=None,
        plan=None,
    ):
        for path in (directory, best_directory or ""):
            check_no_pattern("directory", path)
        self._directory = directory
        self._run = run
        self._plan = plan
        self._damaged = set()
        self._best_directory = best_directory
        self._trainer = trainer
        self._max_to_keep = check_integer("max_to_keep", max_to_keep, 1)
        self._memory = MemoryRows(trainer.memory, trainer.strategy)
        self._is_chief = is_chief(trainer.strategy)
        self._writing = None

    @property
    def latest(self):
        """Returns the path of the newest undamaged checkpoint, or `None`."""
        steps = [
            step
            for step in saved_steps(self._directory)
            if step not in self._damaged
        ]
        return checkpoint_path(self._directory, steps[-1]) if steps else None

    def save(self, results=None):
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
        # All workers must take part: the memory holds the rows of each.
        memory = self._memory.read()
        if not self._is_chief:
            return
        state = {**run_state(self._run), **copies(self._variables())}
        self._damaged.discard(int(state["step"]))
        for i, value in enumerate(memory):
            state[f"memory/{i:03}"] = value
        for name, values in (results or {}).items():
            state[f"results/{name}"] = values
        self._begin_writing(self._directory, state, self._max_to_keep)

    def save_best(self):
        """Writes the weights in place of the best ones so far.

        Raises:
            ValueError: If there is no `best_directory`.
        """
        if self._best_directory is None:
            raise ValueError(
                "`best_directory` must be given to save the best weights. "
                "Received: best_directory=None"
            )
        self.wait()
        if self._is_chief:
            state = weights_state(
                self._trainer.model, self._trainer.step.numpy(), self._run
            )
            self._begin_writing(self._best_directory, state, max_to_keep=1)

    def _begin_writing(self, directory, state, max_to_keep):
        write = functools.partial(
            write_checkpoint, directory, state, max_to_keep
        )
        if self._run is not None:
            folder = os.path.dirname(directory.rstrip("/"))
            config = os.path.join(folder, "config.json")
            write = functools.partial(when_present, config, write)
        self._writing = self._writer.submit(write)

    def wait(self):
        """Waits until everything is written; raises the errors of `save`."""
        if self._writing:
            writing, self._writing = self._writing, None
            writing.result()

    def remove(self):
        """Removes all checkpoints, and the folder if it holds nothing else."""
        self.wait()
        if self._is_chief:
            remove_checkpoints(self._directory)

    def restore(self, expected=None):
        """Restores the newest complete checkpoint, if there is any.

        Args:
            expected: Optional dictionary of the shapes of results that the
                checkpoint must have.

        Returns:
            Dictionary of the vectors that were saved with it as `results`;
            empty for a fresh run. `trainer.step` is the restored step.

        Raises:
            ValueError: If there are checkpoints but none can be read, if they
                belong to another run, or if workers do not see the same files.
        """
        if self._is_chief:
            # An interrupted `fit` of this process may still write here.
            self._writer.submit(int).result()
            remove_leftovers(self._directory)
            if self._best_directory:
                remove_leftovers(self._best_directory)
        results = {}
        steps = saved_steps(self._directory)
        if steps:
            shapes = self._shapes()
            for name, shape in (expected or {}).items():
                shapes[f"results/{name}"] = shape
            state = read_newest(self._directory, shapes, self._run)
            results = self._assign(state)
            self._damaged = {step for step in steps if step > state["step"]}
        self._check_workers_agree()
        return results

    def _variables(self):
        """Returns all variables but the memory, which differs by replica."""
        trainer = self._trainer
        variables = {"step": trainer.step, **weight_variables(trainer.model)}
        for i, variable in enumerate(trainer.optimizer.variables):
            variables[f"optimizer/{i:04}"] = variable.value
        if trainer.loss_scale:
            variables["loss_scale/value"] = trainer.loss_scale.value
            variables["loss_scale/good_steps"] = trainer.loss_scale.good_steps
        if self._plan:
            for name, variable in self._plan.variables.items():
                variables[f"plan/{name}"] = variable
        return variables

    def _shapes(self):
        shapes = shapes_of(self._variables())
        for i, variable in enumerate(self._trainer.memory.state_variables):
            # The rows of all replicas, which may be more or fewer than before.
            rows = self._trainer.batch_size
            shapes[f"memory/{i:03}"] = (rows, *variable.shape[1:])
        return shapes

    def _assign(self, state):
        for name, variable in self._variables().items():
            variable.assign(state[name])
        self._memory.write(
            [
                state[name]
                for name in sorted(state)
                if name.startswith("memory/")
            ]
        )
        return {
            name.removeprefix("results/"): value
            for name, value in state.items()
            if name.startswith("results/")
        }

    def _check_workers_agree(self):
        step = self._trainer.step
        found = gather_integers(
            self._trainer.strategy, lambda: tf.cast(step.read_value(), tf.int64)
        )
        if len(set(found)) > 1:
            raise ValueError(
                f"All workers must see the same files in {self._directory}: "
                "give a `workdir` that they share, such as a bucket. Steps "
                f"found there, by replica: {found.tolist()}"
            )


class MemoryRows:
    """Reads and writes the memory of all replicas in the order of the batch."""

    def __init__(self, stack, strategy):
        self._variables = stack.state_variables
        self._rows = stack.batch_size
        self._strategy = strategy

    def read(self):
        """Returns arrays of `B` rows, ordered as `stack.state_variables`."""
        return [
            value.numpy().astype(variable.dtype.as_numpy_dtype)
            for variable, value in zip(
                self._variables, self._gather(), strict=True
            )
        ]

    def write(self, values):
        """Assigns the result of `read`, on any number of replicas."""

        def rows_of(context):
            first = context.replica_id_in_sync_group * self._rows
            return [
                tf.cast(value[first : first + self._rows], variable.dtype)
                for variable, value in zip(self._variables, values, strict=True)
            ]

        self._assign(
            self._strategy.experimental_distribute_values_from_function(rows_of)
        )

    @tf.function
    def _gather(self):
        def rows():
            # TensorFlow cannot gather bfloat16; float32 holds all its values.
            return [
                tf.cast(v, tf.float32 if v.dtype == tf.bfloat16 else v.dtype)
                for v in self._variables
            ]

        return [
            self._strategy.gather(value, axis=0)
            for value in self._strategy.run(rows)
        ]

    @tf.function
    def _assign(self, parts):
        def assign(parts):
            for variable, part in zip(self._variables, parts, strict=True):
                variable.assign(part)

        self._strategy.run(assign, args=(parts,))
