"""Batches for `fit` and `evaluate` of a language model, from what users pass.

Letters: `B` batch, `T` segment.
"""

import contextlib
import dataclasses
import functools
import itertools
import math

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_no_empty_text
from txl_keras.checks import check_shape
from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.data.segments import Segments
from txl_keras.data.step_batches import StepBatches

# `Segments.dataset` counts its steps, and yet has no end.
_MOST_STEPS = 2**62
_BATCH_SIZE = 32  # of texts, by default


@dataclasses.dataclass
class FitData:
    """Holds batches like those of `Segments`, and counts the steps of `fit`."""

    # Of dicts of static shapes. It repeats if its length is known.
    dataset: tf.data.Dataset
    batch_size: int
    # None if unknown, infinite if there is no end.
    num_steps: int | float | None = None
    # Those of `Segments`, if they vary.
    segment_lengths: tuple[int, ...] | None = None
    # What is read from any step on, if the data is `Segments`.
    source: object = None
    steps_per_epoch: int | None = None
    initial_epoch: int = 0
    steps_done: int = 0  # of this epoch
    # Done before a restart: they count, but are not run again.
    steps_to_skip: int = 0
    batches_to_drop: int = 0

    def set_steps(self, name, num_steps):
        """Returns the steps per epoch: those of an argument, or all."""
        self.steps_per_epoch = self.num_steps
        is_endless = self.num_steps == math.inf
        if num_steps is not None or is_endless:
            most = None if is_endless else self.num_steps
            self.steps_per_epoch = check_integer(name, num_steps, 1, most)
        return self.steps_per_epoch

    def start(self, epoch, steps_done=0):
        """Begins in an epoch, after steps of it that were done before."""
        steps = self.steps_per_epoch
        if steps is not None and steps_done > steps:
            raise ValueError(
                "`x` must be the data of the run that was interrupted after "
                f"{steps_done} batches of an epoch. Received: {steps} batches"
            )
        self.steps_to_skip = steps_done
        if self.source is None:  # its first epoch begins the data
            epoch -= self.initial_epoch
        # Without a known number of steps, every epoch does.
        step = epoch * (steps or 0) + steps_done
        if self.source is not None:
            self.source.first_step = step
        elif self.num_steps in (None, math.inf):
            self.batches_to_drop = step
        else:
            self.batches_to_drop = step % self.num_steps

    def next_steps(self, num_steps):
        """Returns how many of the next `num_steps` steps are to be run."""
        if self.steps_per_epoch is not None:
            left = self.steps_per_epoch - self.steps_done
            num_steps = min(num_steps, left)
        self.steps_done += num_steps
        skipped = min(num_steps, self.steps_to_skip)
        self.steps_to_skip -= skipped
        return num_steps - skipped

    def drop(self, iterator):
        """Reads, after a restart, what was used before."""
        while self.batches_to_drop:
            next(iterator)
            self.batches_to_drop -= 1


class _FromStep(StepBatches):
    """Reads `Segments` from a step on that is set before reading begins."""

    def __init__(self, segments):
        self.batch_size = segments.batch_size
        self.first_step = 0
        self._segments = segments

    def batch(self, step, *rows):
        return self._segments.batch(self.first_step + step, *rows)


def fit_data(x, y, weights, batch_size, vocabulary_size):
    """Returns the `FitData` of arguments of `fit`."""
    has_batches = isinstance(x, Segments) or hasattr(x, "__iter__")
    if isinstance(x, (list, tuple)) or not has_batches:
        raise ValueError(
            "`x` must be an array, text, `Segments` or a dataset. Convert "
            f"ids with `np.asarray`. Received: x={shown(x)}"
        )
    if isinstance(x, (np.ndarray, tf.Tensor)):
        _check_has_targets(y)
        if weights is not None:
            weights = np.asarray(weights)
            sizes = len(x), 1 if weights.shape[1:] == (1,) else x.shape[1]
            check_shape("sample_weight", weights, sizes[: weights.ndim or 1])
        x, y, weights = _in_rows(x, y, weights, batch_size), None, None
    for name, value in {"y": y, "sample_weight": weights}.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be None with {type(x).__name__}, which "
                f"has its own. Received: {name}={shown(value)}"
            )
    if isinstance(x, Segments):
        varies = len(x.segment_lengths) > 1
        source = _FromStep(x)
        check = functools.partial(_check_ids, vocabulary_size=vocabulary_size)
        return FitData(
            source.dataset().map(check),
            x.batch_size,
            len(x),
            segment_lengths=x.segment_lengths if varies else None,
            source=source,
        )
    first = None
    if not isinstance(x, tf.data.Dataset):
        x, first = _generated(x)
    num_steps = int(x.cardinality())
    dataset = _as_dicts(x, first, vocabulary_size)
    if num_steps == 0:
        _first_of(x)  # raises an error
    if 0 < num_steps < _MOST_STEPS:
        dataset = dataset.enumerate().map(_begin_cold).repeat()
    elif num_steps == tf.data.UNKNOWN_CARDINALITY:
        num_steps = None
    else:
        num_steps = math.inf
    rows = dataset.element_spec["inputs"].shape[0]
    return FitData(dataset.prefetch(tf.data.AUTOTUNE), rows, num_steps)


def _generated(batches):
    """Returns a dataset of what an iterable yields, and its first batch."""
    iterator = iter(batches)
    first, size = _first_of(iterator), None
    if isinstance(batches, keras.utils.PyDataset):
        size = batches.num_batches
        read = functools.partial(_read_epoch, batches)
    elif iterator is batches:  # a generator, which can be read only once
        read = functools.partial(iter, itertools.chain([first], iterator))
    else:
        read = functools.partial(iter, batches)
    first = _arrays(first)
    dataset = tf.data.Dataset.from_generator(
        lambda: map(_arrays, read()),
        output_signature=tf.nest.map_structure(
            lambda array: tf.TensorSpec([None] * array.ndim, array.dtype),
            first,
        ),
    )
    if size is not None:
        cardinality = tf.data.experimental.assert_cardinality(size)
        dataset = dataset.apply(cardinality)
    return dataset, first


def _first_of(batches):
    """Returns the first batch; raises `ValueError` if there is none."""
    first = next(iter(batches), None)
    if first is None:
        raise ValueError("`x` must not be empty. Received: no batches")
    return first


def _read_epoch(batches):
    """Yields the batches of a `PyDataset`, and calls its hooks."""
    batches.on_epoch_begin()
    yield from batches
    batches.on_epoch_end()


def _arrays(batch):
    """Returns a batch as a dict or a tuple of arrays."""
    arrays = {key: np.asarray(part) for key, part in _parts(batch).items()}
    return arrays if isinstance(batch, dict) else tuple(arrays.values())


def _check_has_targets(y):
    if y is None:
        raise ValueError(
            "`y` must be the targets of `x`, the tokens that follow. "
            "Received: y=None"
        )


def as_array(x):
    """Returns arrays of other libraries, and variables, as NumPy's."""
    is_array = hasattr(x, "__array__") and not isinstance(x, tf.Tensor)
    return np.asarray(x) if is_array else x


def check_arrays(x, y, batch_size, vocabulary_size):
    """Checks arrays for mistakes that Keras would not report."""
    if not isinstance(x, (np.ndarray, tf.Tensor)):
        return
    if batch_size is None:
        raise ValueError(
            "`batch_size` must be given with arrays: samples r, r + "
            "batch_size, r + 2 batch_size are read as one text. Pass the "
            "batch size of `Segments`, or len(x) if each sample is a text "
            "of its own. Received: batch_size=None"
        )
    check_integer("batch_size", batch_size, 1)
    check_shape("x", x, (None, None))
    if 0 in x.shape:
        raise ValueError(
            "`x` must not be empty. Received: no samples, or none with a "
            f"token: x.shape={tuple(x.shape)}"
        )
    check_token_ids("x", x, vocabulary_size)
    if y is not None:
        check_token_ids("y", y, vocabulary_size)
        check_shape("y", y, tuple(x.shape))


@contextlib.contextmanager
def naming_validation():
    """Says in errors that the arguments are those of `validation_data`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            "In `validation_data`, with `validation_batch_size` as "
            f"`batch_size`: {error}"
        ) from error


def check_no_class_weight(class_weight):
    """Refuses what Keras looks up by the place of a row's largest id."""
    if class_weight is not None:
        raise ValueError(
            "`class_weight` must be None. Pass `sample_weight=weights[y]`, "
            "with `weights` an array of a weight per token id. Received: "
            f"class_weight={shown(class_weight)}"
        )


def in_batches(x, y, batch_size, **arguments):
    """Returns arguments of Keras with `Segments` and arrays as batches."""
    if isinstance(x, Segments):
        (x, y), batch_size = x.arrays(), x.batch_size
    validation = arguments.get("validation_data")
    if isinstance(validation, Segments):
        arguments["validation_data"] = in_batches(validation, None, None)["x"]
    arguments = {"x": x, "y": y, "batch_size": batch_size, **arguments}
    is_array = isinstance(x, (np.ndarray, tf.Tensor))
    if not is_array or y is None or arguments.get("validation_split"):
        return arguments
    weights = arguments.pop("sample_weight", None)
    dataset = _in_rows(x, y, weights, batch_size)
    return {**arguments, "x": dataset, "y": None, "batch_size": None}


def _in_rows(x, y, weights, batch_size):
    """Returns a dataset of batches of arrays, of a static size if it divides.

    Keras cuts arrays into batches of unknown size, but graphs for a CPU are
    faster if the batch size is static.
    """
    parts = (x, y) if weights is None else (x, y, weights)
    batch_size = min(batch_size, len(x))
    return tf.data.Dataset.from_tensor_slices(parts).batch(
        batch_size, drop_remainder=not len(x) % batch_size
    )


def batch_data(batch, vocabulary_size):
    """Returns the `FitData` of a single batch. It traces no map."""
    batch = {
        key: tf.convert_to_tensor(part)
        for key, part in _parts(batch).items()
        if not isinstance(part, tf.experimental.Optional)
    }
    _check_has_targets(batch.get("targets"))
    batch = _check_ids(batch, vocabulary_size)
    check_shape("x", batch["inputs"], (None, None))
    batch = _complete(batch, batch["inputs"].shape, mean_of_all=True)
    rows = batch["inputs"].shape[0]
    return FitData(tf.data.Dataset.from_tensors(batch), rows)


@tf.autograph.experimental.do_not_convert
def _begin_cold(step, batch):
    """Resets all rows in the first batch of a text that is read again."""
    reset = batch.get("reset", False) | tf.fill(
        batch["inputs"].shape[:1], step == 0
    )
    return {**batch, "reset": reset}


def as_texts(x):
    """Returns a string or a list of them for tensors, arrays and datasets.

    Returns all other data as it is.
    """
    is_dataset = isinstance(x, tf.data.Dataset)
    dtype = getattr(x.element_spec if is_dataset else x, "dtype", None)
    # NumPy's arrays of strings, of bytes and of objects.
    if dtype != tf.string and getattr(dtype, "kind", None) not in (*"USO",):
        return x
    if is_dataset:
        if x.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "A dataset of strings must have an end, because all of them "
                "are read before the first step. Use its `take`. Received: "
                f"{shown(x)}"
            )
        x = [text for part in x.as_numpy_iterator() for text in np.ravel(part)]
    elif tf.is_tensor(x):
        x = x.numpy()
    if isinstance(x, (str, bytes)):
        return _as_text(x)
    return [_as_text(text) for text in np.ravel(x).tolist()]


def _as_text(text):
    return text.decode("utf-8") if isinstance(text, bytes) else text


def is_text(x):
    """Returns whether `x` is a string or a list of strings."""
    return isinstance(x, str) or (
        isinstance(x, (list, tuple))
        and len(x) > 0
        and all(isinstance(text, str) for text in x)
    )


def text_segments(texts, tokenizer, batch_size, segment_length, is_training):
    """Returns `Segments` of a text, or of texts that each begin cold."""
    if tokenizer is None:
        raise ValueError(
            "`tokenizer` must be given with text as `x`: build the model with "
            "it. Received: tokenizer=None"
        )
    texts = [texts] if isinstance(texts, str) else texts
    ids = [tokenizer.encode(text) for text in texts]
    check_no_empty_text("x", texts, ids)
    if batch_size is None:  # as in Keras, if there is a segment for each row
        num_segments = sum(map(len, ids)) // segment_length
        batch_size = min(_BATCH_SIZE, max(1, num_segments))
    options = {}
    if len(ids) > 1:
        starts = np.cumsum([0, *map(len, ids[:-1])])
        options = {"documents": starts, "reset_documents": True}
    return Segments(
        np.concatenate(ids),
        batch_size,
        segment_length,
        drop_remainder=is_training,
        **options,
    )


def _as_dicts(dataset, first, vocabulary_size):
    """Maps a dataset of tuples or dicts to dicts of static shapes."""
    # One map for all, because each is traced.
    spec = _parts(dataset.element_spec)
    _check_keys(spec)
    shape = spec["inputs"].shape
    if not shape.is_fully_defined():
        # All batches must be as large as the first, but the last may be short.
        first = first or _first_of(dataset)
        shape = tf.TensorShape(_parts(first)["inputs"].shape)
        dataset = dataset.scan(False, functools.partial(_follow, rows=shape[0]))
    if shape.rank != 2:
        raise ValueError(
            "`x` must have batches of the shape (B, T). Received: a batch of "
            f"shape {shape}"
        )
    mean_of_all = not isinstance(dataset.element_spec, dict)

    @tf.autograph.experimental.do_not_convert
    def complete(*element):
        # `map` unpacks plain tuples only.
        batch = _parts(element if len(element) > 1 else element[0])
        return _check_ids(_complete(batch, shape, mean_of_all), vocabulary_size)

    return dataset.map(complete)


def _parts(element):
    """Returns a dict of what an element of a dataset holds, or its spec."""
    if isinstance(element, dict):
        return dict(element)
    x, y, weights = keras.utils.unpack_x_y_sample_weight(element)
    named = {"inputs": x, "targets": y, "weights": weights}
    return {key: value for key, value in named.items() if value is not None}


def _check_keys(spec):
    known = {"inputs", "targets", "weights", "num_targets", "reset"}
    if not {"inputs", "targets"} <= set(spec) <= known:
        raise ValueError(
            "`x` must be `Segments`, arrays with `y`, or a dataset of pairs "
            "(inputs, targets), of triples with sample weights, or of dicts "
            f"with the keys inputs and targets, and others of {sorted(known)}. "
            f"Received: a dataset of {sorted(spec)}"
        )


@tf.autograph.experimental.do_not_convert
def _follow(was_short, element, rows):
    """Checks that no batch follows a short one, whose rows it would go on."""
    message = "Only the last batch may have fewer rows than the first one."
    check = tf.debugging.Assert(~was_short, [message])
    with tf.control_dependencies([check]):
        return tf.shape(_parts(element)["inputs"])[0] < rows, element


def _complete(batch, shape, mean_of_all):
    """Returns a batch with all entries, padded to `shape`, `(B, T)`."""
    inputs, targets = batch["inputs"], batch["targets"]
    rows = tf.shape(inputs)[0]
    targets = check_shape_in_graph("y", targets, ops.shape(inputs))
    weights = tf.cast(batch.get("weights", 1.0), tf.float32)
    if weights.shape.rank == 1:
        weights = weights[:, None]
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    num_targets = tf.reduce_sum(weights)
    if mean_of_all:  # as in `keras.losses`, whatever the weights
        num_targets = tf.cast(tf.size(inputs), tf.float32)
    padded = {"inputs": inputs, "targets": targets, "weights": weights}
    if "reset" in batch:
        check_shape("reset", batch["reset"], (None,))
        padded["reset"] = tf.cast(batch["reset"], tf.bool)
    message = f"All batches must have the shape {shape} of the first one."
    fits = (rows <= shape[0]) & (tf.shape(inputs)[1] == shape[1])
    check = tf.debugging.Assert(fits, [message, "Received:", tf.shape(inputs)])
    with tf.control_dependencies([check]):
        missing = shape[0] - rows
    padded = {
        key: tf.pad(value, [[0, missing], *[[0, 0]] * (value.shape.rank - 1)])
        for key, value in padded.items()
    }
    return {
        **{
            key: tf.ensure_shape(value, shape[: value.shape.rank])
            for key, value in padded.items()
        },
        "num_targets": batch.get("num_targets", num_targets),
    }


@tf.autograph.experimental.do_not_convert
def _check_ids(batch, vocabulary_size):
    """Checks ids before a step, in which XLA could not raise an error."""
    names = {"inputs": "x", "targets": "y"}
    ids = {
        key: tf.cast(
            check_token_ids(name, batch[key], vocabulary_size), tf.int32
        )
        for key, name in names.items()
    }
    return {**batch, **ids}
