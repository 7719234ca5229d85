"""What a run must keep to go on as if it had never stopped.

A checkpoint is a TensorFlow bundle (`tf.train.load_checkpoint` reads it) of
plain names:

    step               int64 scalar
    run                int64 scalar, `Workdir.run_hash`
    weights/NAME       such as weights/block_0/attention/query/kernel
    optimizer/INDEX    `optimizer.variables`, in their order
    loss_scale/...     in float16
    memory/INDEX       states and valid lengths, rows in the order of the batch
    results/NAME       of steps that are not in metrics.jsonl yet

`tf.train.Checkpoint` would leave out, without a word, the layers that a Keras
3 model keeps in a list, and the memory of all replicas but the first.

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

# Of 24 blocks and their optimizer it takes 70 kB.
_MAX_INDEX_BYTES = 4 << 20


class DamagedCheckpointError(ValueError):
    """A checkpoint that cannot be read to its end, or has NaN in it."""


class Checkpoints:
    """The checkpoints of a run: weights, optimizer, step and memory.

    Data, schedule and dropout are functions of the step, so nothing else is
    needed. Saving copies all to the host and returns; a thread writes the file
    while training goes on. A file is whole or not there: its index comes last.
    With several workers all must call `save`, `save_best`, `restore` and
    `wait`, and the chief writes.

    Args:
        directory: String, local or a bucket. Made where it is absent.
        trainer: The `Trainer` to save and restore.
        max_to_keep: Integer, how many to keep.
        best_directory: Optional string, where `save_best` writes.
        run: Optional integer that tells runs apart: `Workdir.run_hash`.
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
        """Writes a checkpoint of the step that was reached.

        Args:
            results: Optional dictionary of vectors, to be given back by
                `restore`.

        Raises:
            OSError: If the checkpoint before could not be written, by a full
                disk for example. Those that were whole still are.
            FloatingPointError: If it held values that are not finite.
        """
        self.wait()
        # Of all workers, whose rows are in it.
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
        """Writes the weights, in place of the best so far.

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
        """Returns when what was saved is written; raises what `save` does."""
        if self._writing:
            writing, self._writing = self._writing, None
            writing.result()

    def restore(self):
        """Restores the newest checkpoint that is whole, if there is any.

        Returns:
            The results that were saved with it, a dictionary of vectors;
            empty for a fresh run. `trainer.step` tells the step.

        Raises:
            ValueError: If there are checkpoints, and none can be read, or
                they are of another run, or workers do not see the same.
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
        """All but memory, by name: the same on every replica."""
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
            # Rows of all replicas, however many they are.
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
    """The memory of all replicas as one, rows in the order of the batch.

    Args:
        stack: `MemoryStack` made in the scope of `strategy`.
        strategy: The `tf.distribute.Strategy`.
    """

    def __init__(self, stack, strategy):
        self._variables = stack.state_variables
        self._rows = stack.batch_size
        self._strategy = strategy

    def read(self):
        """List of arrays with B rows, as `stack.state_variables`."""
        return [
            value.numpy().astype(variable.dtype.as_numpy_dtype)
            for variable, value in zip(
                self._variables, self._gather(), strict=True
            )
        ]

    def write(self, values):
        """Gives every replica its rows, on any number of replicas.

        Args:
            values: List of arrays, what `read` returned.
        """

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
            # bfloat16 cannot be gathered; float32 holds all its values.
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
    """Writes weights where `restore_weights` finds them.

    Args:
        model: The model.
        directory: String.
        step: Integer, the step they are of.
    """
    write_checkpoint(directory, _weights_state(model, step))


def restore_weights(model, directory, run=None):
    """Restores the newest weights of a run, without optimizer and memory.

    Args:
        model: The model, of the run's configuration.
        directory: String, the run's checkpoints.
        run: Optional integer, see `Checkpoints`.

    Returns:
        Integer, the step they were saved at.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If there are some, and none can be read.
    """
    _check_saved(directory)
    variables = _weight_variables(model)
    shapes = {"step": (), **_shapes(variables)}
    state = _read_newest(directory, shapes, run)
    for name, variable in variables.items():
        variable.assign(state[name])
    return int(state["step"])


def check_saved_shapes(directory, make_expected):
    """Checks that the newest weights of a run have certain shapes.

    Nothing but the index is read, so a model need not be built first.

    Args:
        directory: String, the run's checkpoints.
        make_expected: Function of the number of tensors that are saved, which
            no model has more layers than. It returns a dictionary from the
            name of a weight to its shape.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If there are some, and none can be read, or shapes differ.
    """
    _check_saved(directory)

    def check(path):
        _, saved = _open(path)
        expected = make_expected(len(saved))
        weights = {f"weights/{name}": s for name, s in expected.items()}
        _check_shapes(path, saved, weights)

    _try_newest(directory, check)


def average_weights(model, directory, num_checkpoints=None, run=None):
    """Gives a model the mean of a run's newest checkpoints.

    As the `avg_checkpoints` of the original code does: every weight is the
    mean of its values. Sums are kept in float64.

    Args:
        model: The model, of the run's configuration.
        directory: String, the run's checkpoints.
        num_checkpoints: Optional integer, how many; by default all.
        run: Optional integer, see `Checkpoints`.

    Returns:
        List of integers, the steps that were averaged.

    Raises:
        ValueError: If there are fewer checkpoints, or one cannot be read.
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
    """Steps of the checkpoints in a directory, rising.

    Args:
        directory: String.

    Returns:
        List of integers.
    """
    names = (
        tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    )
    found = (re.fullmatch(r"ckpt-(\d+)\.index", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def write_checkpoint(directory, state, max_to_keep=None):
    """Writes a checkpoint, then removes old ones.

    Args:
        directory: String. Made where it is absent.
        state: Dictionary from names to arrays, `step` among them.
        max_to_keep: Optional integer. As many are kept, up to this step;
            those of later steps, which a run left behind when it went back,
            are not. By default all are.

    Raises:
        OSError: If it cannot be written.
        FloatingPointError: If a value is not finite.
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
            f"{_last_words(error)}. Is the disk full? Whole checkpoints there, "
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
    # The index first: without it there is no checkpoint.
    for file in (
        path + ".index",
        *tf.io.gfile.glob(path + ".data-*"),
    ):
        tf.io.gfile.remove(file)


def _remove_leftovers(directory):
    """Removes what a process that was killed has not written to the end."""
    if not tf.io.gfile.isdir(directory):
        return
    whole = {f"ckpt-{step}" for step in saved_steps(directory)}
    for name in tf.io.gfile.listdir(directory):
        is_ours = re.match(r"(ckpt-\d+)\.(data|index)", name)
        if is_ours and (is_ours[1] not in whole or "tempstate" in name):
            tf.io.gfile.remove(os.path.join(directory, name))


def _last_words(error):
    """What happened, without the name of TensorFlow's function."""
    return error.message.split("}} ")[-1].removesuffix(" [Op:SaveV2]")


def _copies(variables):
    # Copies: what TensorFlow hands out may be the memory of the variable.
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
        # bfloat16 is no float to NumPy.
        values = value.astype("float32") if value.dtype.kind == "V" else value
        if not np.isfinite(values).all():
            return name
    return None


def _open(path):
    """Opens a checkpoint; also returns the shapes of its tensors by name.

    Files that are smaller than these tensors are damaged, or were made so that
    a reader allocates what they claim.
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
    # What a missing and a cut file raise.
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
        f"{name} is of no use"
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
    """Values of a checkpoint, whose checksums are looked at, and results.

    Raises `DamagedCheckpointError`, or `ValueError` if it lacks what `shapes`
    names or is of another run.
    """
    reader, saved = _open(path)
    _check_shapes(path, saved, shapes)
    try:
        state = {
            name: reader.get_tensor(name)
            for name in saved
            if name in shapes or re.match("run$|results/", name)
        }
    # What a missing and a cut file raise.
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error
    # Those of earlier versions have no `run`.
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
            f"No checkpoint in {directory}: train first, with "
            "`python train/main.py`."
        )


def _read_newest(directory, shapes, run=None):
    """The newest state that is whole; a damaged one gives way, loudly."""
    return _try_newest(directory, lambda path: _read(path, shapes, run))


def _try_newest(directory, read):
    """What `read` returns of the newest checkpoint that is not damaged."""
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
