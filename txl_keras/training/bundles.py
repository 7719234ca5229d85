"""Weights of a run in TensorFlow bundles, by name.

`training.checkpointing` describes what else a bundle may hold. A file may come
from a stranger: sizes are compared before anything is allocated.
"""

import math
import os
import re

import numpy as np
import tensorflow as tf
from absl import logging

from txl_keras.checks import check_integer
from txl_keras.checks import check_no_pattern
from txl_keras.data.corpora.files import remove_if_empty
from txl_keras.json_files import open_checked
from txl_keras.weights import weights_by_name

# The index of 24 blocks and their optimizer takes 70 kB.
_MAX_INDEX_BYTES = 4 << 20


class DamagedCheckpointError(ValueError):
    """Reports a checkpoint that cannot be read in full or contains NaN."""


def save_weights(model, directory, step=0):
    """Writes the weights of a model for `restore_weights`."""
    write_checkpoint(directory, weights_state(model, step))


def restore_weights(model, directory, run=None):
    """Restores a run's newest weights only; returns the step of them."""
    _check_saved(directory)
    variables = weight_variables(model)
    shapes = {"step": (), **shapes_of(variables)}
    state = read_newest(directory, shapes, run)
    for name, variable in variables.items():
        variable.assign(state[name])
    return int(state["step"])


def check_saved_shapes(directory, make_expected):
    """Checks the shapes of a run's newest weights by reading only the index."""
    # `make_expected` takes the number of saved tensors, an upper limit of the
    # number of layers, and returns the expected shapes by name. So a model need
    # not be built before its size is known.
    _check_saved(directory)

    def check(path):
        _, saved = _open(path)
        expected = make_expected(len(saved))
        weights = {f"weights/{name}": s for name, s in expected.items()}
        check_shapes(path, saved, weights)

    _try_newest(directory, check)


def average_weights(model, directory, num_checkpoints=None, run=None):
    """Gives a model the mean of a run's newest checkpoints; returns steps."""
    # Like `avg_checkpoints` of the original code, with sums in float64.
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
    variables = weight_variables(model)
    sums = {name: np.zeros(v.shape) for name, v in variables.items()}
    for step in steps:
        state = _read(
            checkpoint_path(directory, step), shapes_of(variables), run
        )
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
    """Writes a checkpoint of arrays by name, then removes old ones."""
    # `max_to_keep` checkpoints up to this step are kept, and none of later
    # steps, which a run that resumed from an earlier step left behind.
    path = checkpoint_path(directory, state["step"])
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
        remove_leftovers(directory)
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
            _remove(checkpoint_path(directory, step))


def checkpoint_path(directory, step):
    """Returns the path of a checkpoint, without the ending of its files."""
    return os.path.join(directory, f"ckpt-{step}")


def _remove(path):
    # The index first: files without an index are not a checkpoint.
    for file in (
        path + ".index",
        *tf.io.gfile.glob(path + ".data-*"),
    ):
        tf.io.gfile.remove(file)


def remove_leftovers(directory):
    """Removes the incomplete files of a process that was killed."""
    if not tf.io.gfile.isdir(directory):
        return
    whole = {f"ckpt-{step}" for step in saved_steps(directory)}
    for name in tf.io.gfile.listdir(directory):
        is_ours = re.match(r"(ckpt-\d+)\.(data|index)", name)
        if is_ours and (is_ours[1] not in whole or "tempstate" in name):
            tf.io.gfile.remove(os.path.join(directory, name))


def remove_checkpoints(directory):
    """Removes checkpoints, and their folder if it holds nothing else."""
    for step in saved_steps(directory):
        _remove(checkpoint_path(directory, step))
    remove_leftovers(directory)
    remove_if_empty(directory)


def _reason(error):
    """Returns TensorFlow's error message without the name of the op."""
    return error.message.split("}} ")[-1].removesuffix(" [Op:SaveV2]")


def copies(variables):
    """Returns the values of variables by name, as arrays of their own."""
    # `numpy()` may share the memory of the variable.
    return {name: np.array(v.numpy()) for name, v in variables.items()}


def weight_variables(model):
    """Returns the weights of a model by their names in a checkpoint."""
    return {f"weights/{n}": v for n, v in weights_by_name(model).items()}


def weights_state(model, step, run=None):
    """Returns what `write_checkpoint` writes of a model."""
    return {
        "step": np.int64(step),
        **run_state(run),
        **copies(weight_variables(model)),
    }


def run_state(run):
    """Returns the entry of a checkpoint that identifies its run."""
    return {} if run is None else {"run": np.int64(run)}


def shapes_of(variables):
    """Returns the shapes of variables by name."""
    return {name: tuple(v.shape) for name, v in variables.items()}


def _first_not_finite(state):
    for name, value in state.items():
        # Those of steps that float16 skipped are infinite.
        if name.startswith("results/"):
            continue
        # NumPy has no bfloat16: its kind is "V".
        values = value.astype("float32") if value.dtype.kind == "V" else value
        if not np.isfinite(values).all():
            return name
    return None


def _open(path):
    """Opens a checkpoint; returns its reader and the shapes of its tensors."""
    # Rejects files that are smaller than the tensors they claim to hold: they
    # are damaged, or made to exhaust the memory of the reader.
    check_no_pattern("path", path)
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


def check_shapes(path, saved, expected):
    """Raises `ValueError` unless a checkpoint has these shapes."""
    # Of the groups of `expected`, such as weights or optimizer, it must have no
    # other variables; results are left to the caller.
    groups = {name.split("/")[0] for name in expected} - {"results"}
    problems = [
        f"{name} is missing" if name not in saved
        else f"{name} is {saved[name]}, not {shape}"
        for name, shape in expected.items()
        if saved.get(name) != shape
    ]  # fmt: skip
    problems += [
        f"{name} is not in this model or its optimizer"
        for name in sorted(saved.keys() - expected)
        if name.split("/")[0] in groups
    ]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(
            f"{path} is of another model: {'; '.join(problems[:3])}{more}. "
            "Bring back the config.json that it was saved with, or build the "
            "model of the same sizes."
        )


def _read(path, shapes, run=None):
    """Reads the tensors named in `shapes`, and the saved results."""
    reader, saved = _open(path)
    check_shapes(path, saved, shapes)
    try:
        state = {
            name: reader.get_tensor(name)
            for name in saved
            if name in shapes or re.match("run$|results/", name)
        }
    # The errors of missing and truncated files.
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error
    # Converted weights are of no run.
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


def read_newest(directory, shapes, run=None):
    """Reads the newest complete checkpoint; logs an error for a damaged one."""
    return _try_newest(directory, lambda path: _read(path, shapes, run))


def _try_newest(directory, read):
    """Returns `read(path)` for the newest checkpoint that is not damaged."""
    errors = []
    for step in reversed(saved_steps(directory)):
        try:
            result = read(checkpoint_path(directory, step))
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
