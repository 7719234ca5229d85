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

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_no_pattern
from txl_keras.data.corpora.files import remove_if_empty
from txl_keras.missing_folder import when_present
from txl_keras.training import bundles
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import is_chief
from txl_keras.weights import weights_by_name


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
        write_best: Optional function of `save_best`, of weights by name and
            their step.
        run: Optional integer that identifies the run: `Workdir.run_hash`. Then
            writing waits while the config.json of the run, beside `directory`,
            is missing.
        plan: Optional `RunPlan`, to save and restore.
    """

    # One thread for all objects: a write ends before another one begins.
    _writer = concurrent.futures.ThreadPoolExecutor(1)

    def __init__(
        self,
        directory,
        trainer,
        max_to_keep=2,
        write_best=None,
        run=None,
        plan=None,
    ):
        check_no_pattern("directory", directory)
        self._directory = directory
        self._write_best = write_best
        self._run = run
        self._trainer = trainer
        self._max_to_keep = check_integer("max_to_keep", max_to_keep, 1)
        self._is_chief = is_chief(trainer.strategy)
        self._damaged = set()  # steps
        self._writing = None
        # All but the memory, which differs by replica.
        self._variables = {
            "step": trainer.step,
            **bundles.weight_variables(trainer.model),
            **{
                f"optimizer/{i:04}": variable.value
                for i, variable in enumerate(trainer.optimizer.variables)
            },
        }
        if trainer.loss_scale:
            for name in ("value", "good_steps"):
                variable = getattr(trainer.loss_scale, name)
                self._variables[f"loss_scale/{name}"] = variable
        for name, variable in (plan.variables if plan else {}).items():
            self._variables[f"plan/{name}"] = variable
        self._memory = {
            f"memory/{i:03}": variable
            for i, variable in enumerate(trainer.memory.state_variables)
        }

    @property
    def latest(self):
        """Returns the path of the newest undamaged checkpoint, or `None`."""
        steps = set(bundles.saved_steps(self._directory)) - self._damaged
        if not steps:
            return None
        return bundles.checkpoint_path(self._directory, max(steps))

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
        memory = self._gather_memory()
        if not self._is_chief:
            return
        state = bundles.copies(self._variables)
        self._damaged.discard(int(state["step"]))
        for (name, variable), value in zip(
            self._memory.items(), memory, strict=True
        ):
            state[name] = value.numpy().astype(variable.dtype.as_numpy_dtype)
        for name, values in (results or {}).items():
            state[f"results/{name}"] = values
        if self._run is not None:
            state["run"] = np.int64(self._run)
        self._begin_writing(
            bundles.write_checkpoint, self._directory, state, self._max_to_keep
        )

    def save_best(self):
        """Writes the weights in place of the best ones so far."""
        self.wait()
        if self._is_chief:
            weights = bundles.copies(weights_by_name(self._trainer.model))
            step = int(self._trainer.step.numpy())
            self._begin_writing(self._write_best, weights, step)

    def _begin_writing(self, function, *args):
        write = functools.partial(function, *args)
        if self._run is not None:
            folder = os.path.dirname(self._directory.rstrip("/"))
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
            steps = bundles.saved_steps(self._directory)
            bundles.remove_checkpoints(self._directory, steps)
            remove_if_empty(self._directory)

    def restore(self, expected=None):
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
            bundles.remove_leftovers(self._directory)
        results = {}
        steps = bundles.saved_steps(self._directory)
        if steps:
            shapes = bundles.shapes_of(self._variables)
            for name, variable in self._memory.items():
                # The rows of all replicas, maybe more or fewer than before.
                shapes[name] = self._trainer.batch_size, *variable.shape[1:]
            for name, shape in (expected or {}).items():
                shapes[f"results/{name}"] = shape
            state = bundles.read_newest(self._directory, shapes, self._run)
            for name, variable in self._variables.items():
                variable.assign(state[name])
            self._assign_memory(state)
            results = {
                name.removeprefix("results/"): value
                for name, value in state.items()
                if name.startswith("results/")
            }
            self._damaged = {step for step in steps if step > state["step"]}
        self._check_workers_agree()
        return results

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

    @tf.function
    def _gather_memory(self):
        """Returns the rows of all replicas in the order of the batch."""

        def rows():
            # TensorFlow cannot gather bfloat16; float32 holds all its values.
            return [
                tf.cast(v, tf.float32 if v.dtype == tf.bfloat16 else v.dtype)
                for v in self._memory.values()
            ]

        strategy = self._trainer.strategy
        return [strategy.gather(v, axis=0) for v in strategy.run(rows)]

    def _assign_memory(self, state):
        """Assigns the saved rows, from any number of replicas to any other."""
        strategy, count = (
            self._trainer.strategy,
            self._trainer.memory.batch_size,
        )

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
