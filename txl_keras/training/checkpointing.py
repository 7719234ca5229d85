"""Checkpoints that make resuming exact.

A checkpoint is a TensorFlow bundle (`tf.train.load_checkpoint` reads it) of
plain names:

    step               int64 scalar
    run                int64 scalar, `Workdir.run_hash`
    weights/NAME       such as weights/block_0/attention/query/kernel
    optimizer/INDEX    `optimizer.variables`, in their order
    loss_scale/...     in float16
    memory/INDEX       states and valid lengths, rows in the order of the batch
    results/NAME       of steps that are not in metrics.jsonl yet

`tf.train.Checkpoint` would silently leave out the layers that a Keras 3 model
keeps in a list, and the memory of all replicas but the first.

Letters: `B` batch over all replicas.
"""

import concurrent.futures
import math
import os
import re

import numpy as np
import tensorflow as tf
from absl import logging

from txl_keras.checks import check_integer
from txl_keras.json_files import open_checked
from txl_keras.models.weights import weights_by_name
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import is_chief

# The index of 24 blocks and their optimizer takes 70 kB.
_MAX_INDEX_BYTES = 4 << 20


class DamagedCheckpointError(ValueError):
    """Raised for a checkpoint that is not fully readable or contains NaN."""


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
        run: Optional integer that identifies the run: `Workdir.run_hash`.
    """

    def __init__(
        self,
        directory,
        trainer,
        max_to_keep=2,
        best_directory=None,
        run=None,
    ):
        self._directory = directory
        self._run = run
        self._damaged = set()
        self._best_directory = best_directory
        self._trainer = trainer
        self._max_to_keep = check_integer("max_to_keep", max_to_keep, 1)
        self._memory = MemoryRows(trainer.memory, trainer.strategy)
        self._is_chief = is_chief(trainer.strategy)
        self._writer = concurrent.futures.ThreadPoolExecutor(1)
        self._writing = None

    @property
    def latest(self):
        """Path of the newest checkpoint that is not damaged, or `None`."""
        steps = [
            step
            for step in saved_steps(self._directory)
            if step not in self._damaged
        ]
        return _path(self._directory, steps[-1]) if steps else None

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
        state = {**_run_state(self._run), **_copies(self._variables())}
        self._damaged.discard(int(state["step"]))
        for i, value in enumerate(memory):
            state[f"memory/{i:03}"] = value
        for name, values in (results or {}).items():
            state[f"results/{name}"] = values
        self._writing = self._writer.submit(
            write_checkpoint, self._directory, state, self._max_to_keep
        )

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
            state = _weights_state(
                self._trainer.model, self._trainer.step.numpy(), self._run
            )
            self._writing = self._writer.submit(
                write_checkpoint, self._best_directory, state, max_to_keep=1
            )

    def wait(self):
        """Waits until everything is written; raises the errors of `save`."""
        if self._writing:
            writing, self._writing = self._writing, None
            writing.result()

    def restore(self):
        """Restores the newest complete checkpoint, if there is any.

        Returns:
            Dictionary of the vectors that were saved with it as `results`;
            empty for a fresh run. `trainer.step` is the restored step.

        Raises:
            ValueError: If there are checkpoints but none can be read, if they
                belong to another run, or if workers do not see the same files.
        """
        if self._is_chief:
            _remove_leftovers(self._directory)
            if self._best_directory:
                _remove_leftovers(self._best_directory)
        results = {}
        steps = saved_steps(self._directory)
        if steps:
            state = _read_newest(self._directory, self._shapes(), self._run)
            results = self._assign(state)
            self._damaged = {step for step in steps if step > state["step"]}
        self._check_workers_agree()
        return results

    def _variables(self):
        """Returns all variables but the memory, which differs by replica."""
        trainer = self._trainer
        variables = {"step": trainer.step}
        for name, variable in weights_by_name(trainer.model).items():
            variables[f"weights/{name}"] = variable
        for i, variable in enumerate(trainer.optimizer.variables):
            variables[f"optimizer/{i:04}"] = variable.value
        if trainer.loss_scale:
            variables["loss_scale/value"] = trainer.loss_scale.value
            variables["loss_scale/good_steps"] = trainer.loss_scale.good_steps
        return variables

    def _shapes(self):
        shapes = _shapes(self._variables())
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


def save_weights(model, directory, step=0):
    """Writes the weights of a model for `restore_weights`."""
    write_checkpoint(directory, _weights_state(model, step))


def restore_weights(model, directory, run=None):
    """Restores the newest weights of a run, without optimizer and memory.

    Returns the step they were saved at. Raises `FileNotFoundError` if there is
    no checkpoint, `ValueError` if none can be read.
    """
    _check_saved(directory)
    variables = _weight_variables(model)
    shapes = {"step": (), **_shapes(variables)}
    state = _read_newest(directory, shapes, run)
    for name, variable in variables.items():
        variable.assign(state[name])
    return int(state["step"])


def check_saved_shapes(directory, make_expected):
    """Checks the shapes of a run's newest weights by reading only the index.

    `make_expected` takes the number of saved tensors, an upper limit of the
    number of layers, and returns the expected shapes by name. So a model need
    not be built before its size is known.
    """
    _check_saved(directory)

    def check(path):
        _, saved = _open(path)
        expected = make_expected(len(saved))
        weights = {f"weights/{name}": s for name, s in expected.items()}
        _check_shapes(path, saved, weights)

    _try_newest(directory, check)


def average_weights(model, directory, num_checkpoints=None, run=None):
    """Gives a model the mean of a run's newest checkpoints, by default of all.

    Like `avg_checkpoints` of the original code, with sums in float64. Returns
    the steps that were averaged; raises `ValueError` if there are fewer
    checkpoints, or one cannot be read.
    """
    if num_checkpoints is not None:
        check_integer("num_checkpoints", num_checkpoints, 1)
    steps = saved_steps(directory)
    if not steps:
        raise ValueError(f"There are no checkpoints in {directory}.")
    if len(steps) < (num_checkpoints or 1):
        raise ValueError(
            f"`num_checkpoints` must be at most {len(steps)}, as many as there "
            f"are in {directory}; train with a higher --max_to_keep for more. "
            f"Received: num_checkpoints={num_checkpoints}"
        )
    steps = steps[-(num_checkpoints or 0) :]
    variables = _weight_variables(model)
    sums = {name: np.zeros(v.shape) for name, v in variables.items()}
    for step in steps:
        state = _read(_path(directory, step), _shapes(variables), run)
        for name, total in sums.items():
            total += state[name]
    for name, variable in variables.items():
        variable.assign(sums[name] / len(steps))
    return steps


def saved_steps(directory):
    """Returns the steps of the checkpoints in a directory, ascending."""
    names = (
        tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    )
    found = (re.fullmatch(r"ckpt-(\d+)\.index", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def write_checkpoint(directory, state, max_to_keep=None):
    """Writes a checkpoint, then removes old ones.

    `state` maps names to arrays and includes `step`. With `max_to_keep`, that
    many checkpoints up to this step are kept, and none of later steps, which a
    run that resumed from an earlier step left behind. Raises `OSError` if it
    cannot be written, `FloatingPointError` if a value is not finite.
    """
    path = _path(directory, state["step"])
    name = _first_not_finite(state)
    if name:
        raise FloatingPointError(
            f"Not saved: {name} of step {state['step']} is not finite."
        )
    names = sorted(state)
    try:
        tf.io.gfile.makedirs(directory)
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[tf.constant(state[name]) for name in names],
            )
    except tf.errors.OpError as error:
        _remove_leftovers(directory)
        kept = ", ".join(map(str, saved_steps(directory))) or "none"
        raise OSError(
            f"The checkpoint {path} could not be written: "
            f"{_reason(error)}. Is the disk full? Whole checkpoints there, "
            f"by step: {kept}."
        ) from error
    if max_to_keep is not None:
        steps = saved_steps(directory)
        kept = [step for step in steps if step <= state["step"]][-max_to_keep:]
        for step in set(steps) - set(kept):
            _remove(_path(directory, step))


def _path(directory, step):
    return os.path.join(directory, f"ckpt-{step}")


def _remove(path):
    # The index first: files without an index are not a checkpoint.
    for file in (
        path + ".index",
        *tf.io.gfile.glob(path + ".data-*"),
    ):
        tf.io.gfile.remove(file)


def _remove_leftovers(directory):
    """Removes the incomplete files of a process that was killed."""
    if not tf.io.gfile.isdir(directory):
        return
    whole = {f"ckpt-{step}" for step in saved_steps(directory)}
    for name in tf.io.gfile.listdir(directory):
        is_ours = re.match(r"(ckpt-\d+)\.(data|index)", name)
        if is_ours and (is_ours[1] not in whole or "tempstate" in name):
            tf.io.gfile.remove(os.path.join(directory, name))


def _reason(error):
    """Returns TensorFlow's error message without the name of the op."""
    return error.message.split("}} ")[-1].removesuffix(" [Op:SaveV2]")


def _copies(variables):
    # Copies, because `numpy()` may share the memory of the variable.
    return {name: np.array(v.numpy()) for name, v in variables.items()}


def _weight_variables(model):
    return {f"weights/{n}": v for n, v in weights_by_name(model).items()}


def _weights_state(model, step, run=None):
    return {
        "step": np.int64(step),
        **_run_state(run),
        **_copies(_weight_variables(model)),
    }


def _run_state(run):
    return {} if run is None else {"run": np.int64(run)}


def _shapes(variables):
    return {name: tuple(v.shape) for name, v in variables.items()}


def _first_not_finite(state):
    for name, value in state.items():
        # NumPy has no bfloat16: its kind is "V".
        values = value.astype("float32") if value.dtype.kind == "V" else value
        if not np.isfinite(values).all():
            return name
    return None


def _open(path):
    """Opens a checkpoint; returns its reader and the shapes of its tensors.

    Rejects files that are smaller than the tensors they claim to hold: they are
    damaged, or made to exhaust the memory of the reader.
    """
    try:
        open_checked(f"{path}.index", _MAX_INDEX_BYTES).close()
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        shapes = {
            name: tuple(shape)
            for name, shape in reader.get_variable_to_shape_map().items()
        }
        dtypes = reader.get_variable_to_dtype_map()
        held = sum(
            tf.io.gfile.stat(file).length
            for file in tf.io.gfile.glob(f"{path}.data-*")
        )
    # The errors of missing and truncated files.
    except (OSError, ValueError, tf.errors.OpError, RuntimeError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error
    others = [
        n for n, d in dtypes.items() if not (d.is_floating or d.is_integer)
    ]
    claimed = sum(
        math.prod(shape) * dtypes[name].size for name, shape in shapes.items()
    )
    if others or claimed > held:
        reason = (
            f"{others[0]} is no number"
            if others
            else (
                f"its tensors take {claimed:,} bytes, its files have {held:,}"
            )
        )
        raise DamagedCheckpointError(f"{path} is damaged: {reason}")
    return reader, shapes


def _check_shapes(path, saved, expected):
    """Raises `ValueError` unless a checkpoint has these shapes and weights."""
    problems = [
        f"{name} is missing" if name not in saved
        else f"{name} is {saved[name]}, not {shape}"
        for name, shape in expected.items()
        if saved.get(name) != shape
    ]  # fmt: skip
    problems += [
        f"{name} is not in this model"
        for name in sorted(saved.keys() - expected)
        if name.startswith("weights/")
    ]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(
            f"{path} is of another model: {'; '.join(problems[:3])}{more}. "
            "Bring back the config.json that it was saved with, or build the "
            "model of the same sizes."
        )


def _read(path, shapes, run=None):
    """Reads the tensors named in `shapes`, and the saved results.

    Raises `DamagedCheckpointError`, or `ValueError` for another model or run.
    TensorFlow verifies checksums.
    """
    reader, saved = _open(path)
    _check_shapes(path, saved, shapes)
    try:
        state = {
            name: reader.get_tensor(name)
            for name in saved
            if name in shapes or re.match("run$|results/", name)
        }
    # The errors of missing and truncated files.
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error
    # Checkpoints of earlier versions have no `run`.
    if run is not None and state.get("run", run) != run:
        raise ValueError(
            f"{path} is of another run: it was saved under another "
            "configuration than the config.json beside its folder. Bring back "
            "the files of one run."
        )
    name = _first_not_finite(state)
    if name:
        raise DamagedCheckpointError(f"{path} is damaged: {name} is not finite")
    return state


def _check_saved(directory):
    if not saved_steps(directory):
        raise FileNotFoundError(
            f"No checkpoint in {directory}: train first, with `txl train`."
        )


def _read_newest(directory, shapes, run=None):
    """Reads the newest complete checkpoint; logs an error for a damaged one."""
    return _try_newest(directory, lambda path: _read(path, shapes, run))


def _try_newest(directory, read):
    """Returns `read(path)` for the newest checkpoint that is not damaged."""
    errors = []
    for step in reversed(saved_steps(directory)):
        try:
            result = read(_path(directory, step))
        except DamagedCheckpointError as error:
            errors.append(str(error))
            continue
        for error in errors:
            logging.error("%s. Step %d is taken instead.", error, step)
        return result
    raise DamagedCheckpointError(
        f"No checkpoint in {directory} can be read. {errors[0]}. Bring back a "
        "copy of the folder, or begin again with another --workdir."
    )
