"""Batches for `fit` and `evaluate` of a language model, from what users pass.

Letters: `B` batch, `T` segment.
"""

import dataclasses
import functools
import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.data.segments import Segments

_BATCH_SIZE = 32  # of texts, by default
_KEYS = {"inputs", "targets", "weights", "num_targets", "reset"}


@dataclasses.dataclass
class FitData:
    """Holds batches like those of `Segments`, for `fit` or `evaluate`."""

    # Of dicts of static shapes. It repeats if its length is known.
    dataset: tf.data.Dataset
    batch_size: int
    num_steps: int  # or what TensorFlow calls the cardinality of a dataset
    # Returns the dataset from a step on, if the data is `Segments`.
    from_step: object = None

    def steps(self, name, num_steps):
        """Returns the steps per epoch: those of an argument, or all."""
        most = self.num_steps if self.num_steps > 0 else None
        if num_steps is None and self.num_steps != tf.data.INFINITE_CARDINALITY:
            return most
        return check_integer(name, num_steps, 1, most)

    def seek(self, epochs, initial_epoch, steps_per_epoch, steps_done):
        """Returns a dataset, and how many of its batches were used before."""
        steps = steps_per_epoch or 0  # if unknown, epochs begin the data
        if self.from_step is not None:
            step = epochs * steps + steps_done
            return self.from_step(step) if step else self.dataset, 0
        used = (epochs - initial_epoch) * steps + steps_done
        if self.num_steps > 0:
            used %= self.num_steps
        return self.dataset, used


def in_batches(x, y, weights, batch_size):
    """Returns arrays as a dataset of batches, and other data as it is."""
    if isinstance(x, (np.ndarray, tf.Tensor)):
        if weights is not None:
            weights = np.asarray(weights)
            sizes = len(x), 1 if weights.shape[1:] == (1,) else x.shape[1]
            check_shape("sample_weight", weights, sizes[: weights.ndim or 1])
        # Keras cuts arrays into batches of unknown size, but graphs for a CPU
        # are faster if the batch size is static.
        batch_size = min(batch_size, len(x))
        parts = keras.utils.pack_x_y_sample_weight(x, y, weights)
        return tf.data.Dataset.from_tensor_slices(parts).batch(
            batch_size, drop_remainder=not len(x) % batch_size
        )
    has_batches = isinstance(x, Segments) or hasattr(x, "__iter__")
    if isinstance(x, (list, tuple)) or not has_batches:
        raise ValueError(
            "`x` must be an array, text, `Segments` or a dataset. Convert "
            f"ids with `np.asarray`. Received: x={shown(x)}"
        )
    for name, value in {"y": y, "sample_weight": weights}.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be None with {type(x).__name__}, which "
                f"has its own. Received: {name}={shown(value)}"
            )
    return x


def fit_data(x, vocabulary_size):
    """Returns the `FitData` of what `in_batches` returned."""

    @tf.autograph.experimental.do_not_convert
    def complete(*element):
        # `map` unpacks plain tuples only.
        batch = element if len(element) > 1 else element[0]
        return complete_batch(batch, vocabulary_size)

    if isinstance(x, Segments):

        def from_step(step):
            return x.dataset(step).map(complete)

        return FitData(from_step(0), x.batch_size, len(x), from_step)
    first = None
    if not isinstance(x, tf.data.Dataset):
        x, first = _generated(x)
    dataset = x.map(complete)
    shape = dataset.element_spec["inputs"].shape
    if not shape.is_fully_defined():
        # All batches must be as large as the first, but the last may be short.
        first = _first_of(x) if first is None else first
        shape = tuple(_parts(first)["inputs"].shape)
        dataset = dataset.scan(False, functools.partial(_pad, shape=shape))
    num_steps = int(x.cardinality())
    if num_steps == 0:
        _first_of(x)  # raises an error
    if num_steps > 0:
        dataset = dataset.enumerate().map(_begin_cold).repeat()
    return FitData(dataset.prefetch(tf.data.AUTOTUNE), shape[0], num_steps)


def _generated(batches):
    """Returns a dataset of what an iterable yields, and its first batch."""
    iterator = iter(batches)
    first = _first_of(iterator)
    has_hooks = isinstance(batches, keras.utils.PyDataset)
    size = batches.num_batches if has_hooks else None
    if iterator is batches:  # a generator, which can be read only once
        batches = itertools.chain([first], iterator)

    def read():
        if has_hooks:
            batches.on_epoch_begin()
        yield from map(_arrays, batches)
        if has_hooks:
            batches.on_epoch_end()

    first = _arrays(first)
    dataset = tf.data.Dataset.from_generator(
        read,
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


def _arrays(batch):
    """Returns a batch as a dict or a tuple of arrays."""
    arrays = {key: np.asarray(part) for key, part in _parts(batch).items()}
    return arrays if isinstance(batch, dict) else tuple(arrays.values())


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


def check_no_class_weight(class_weight):
    """Raises if it is given: Keras would apply it to the wrong axis."""
    if class_weight is not None:
        raise ValueError(
            "`class_weight` must be None. Pass `sample_weight=weights[y]`, "
            "with `weights` an array of a weight per token id. Received: "
            f"class_weight={shown(class_weight)}"
        )


def split(x, y, weights, share):
    """Returns arrays for training, and the last samples for validation."""
    num_samples = len(x) if isinstance(x, (np.ndarray, tf.Tensor)) else 0
    at = int(num_samples * (1 - share))
    if not 0 < at < num_samples:
        raise ValueError(
            "`validation_split` must be 0 unless `x` is an array, and leave "
            "samples of it for both parts. Received: validation_split="
            f"{share}, x={shown(x)}"
        )
    if y is not None:
        check_shape("y", np.asarray(y), (num_samples, *np.shape(y)[1:]))
    return [
        tuple(part if part is None else part[rows] for part in (x, y, weights))
        for rows in (slice(at), slice(at, None))
    ]


@tf.autograph.experimental.do_not_convert
def _begin_cold(step, batch):
    """Resets all rows in the first batch of a text that is read again."""
    reset = batch.get("reset", False) | tf.fill(
        batch["inputs"].shape[:1], step == 0
    )
    return {**batch, "reset": reset}


def as_data(x):
    """Returns strings as one or a list of them, and arrays as NumPy's."""
    is_dataset = isinstance(x, tf.data.Dataset)
    if hasattr(x, "__array__") and not isinstance(x, (tf.Tensor, np.generic)):
        x = np.asarray(x)  # an array of another library, or a variable
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


def text_segments(ids, batch_size, segment_length, is_training):
    """Returns `Segments` of the ids of texts that each begin cold."""
    if batch_size is None:  # as in Keras, if there is a segment for each row
        num_segments = (sum(map(len, ids)) - 1) // segment_length
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


def _parts(element):
    """Returns a dict of what an element of a dataset holds, or its spec."""
    if isinstance(element, dict):
        return dict(element)
    x, y, weights = keras.utils.unpack_x_y_sample_weight(element)
    named = {"inputs": x, "targets": y, "weights": weights}
    return {key: value for key, value in named.items() if value is not None}


def complete_batch(batch, vocabulary_size):
    """Returns a batch as a dict with all entries, of ids that are checked."""
    # Before a step, in which XLA could not raise an error.
    given = _parts(batch)
    if not {"inputs", "targets"} <= set(given) <= _KEYS:
        raise ValueError(
            "`x` must be `Segments`, arrays with `y`, or a dataset of pairs "
            "(inputs, targets), of triples with sample weights, or of dicts "
            f"with the keys inputs and targets, and others of {sorted(_KEYS)}. "
            f"Received: batches of {sorted(given)}"
        )
    inputs, targets = (
        tf.cast(check_token_ids(name, ids, vocabulary_size), tf.int32)
        for name, ids in (("x", given["inputs"]), ("y", given["targets"]))
    )
    check_shape("x", inputs, (None, None), "Each batch must be (B, T)")
    targets = check_shape_in_graph("y", targets, ops.shape(inputs))
    weights = tf.cast(given.get("weights", 1.0), tf.float32)
    if weights.shape.rank == 1:
        weights = weights[:, None]
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    num_targets = tf.reduce_sum(weights)
    if not isinstance(batch, dict):  # as in `keras.losses`
        num_targets = tf.cast(tf.size(inputs), tf.float32)
    if "reset" in given:
        check_shape("reset", given["reset"], (None,))
        given["reset"] = tf.cast(given["reset"], tf.bool)
    return {
        "num_targets": num_targets,
        **given,
        "inputs": inputs,
        "targets": targets,
        "weights": weights,
    }


@tf.autograph.experimental.do_not_convert
def _pad(was_short, batch, shape):
    """Pads a batch to `shape`, `(B, T)`; returns whether it was short, too."""
    # The rows of a short batch end, so that no other may follow.
    sizes = tf.shape(batch["inputs"])
    missing = shape[0] - sizes[0]
    checks = [
        tf.debugging.Assert(
            ~was_short,
            ["Only the last batch may have fewer rows than the first one."],
        ),
        tf.debugging.Assert(
            (missing >= 0) & (sizes[1] == shape[1]),
            [
                f"All batches must have the shape {shape} of the first one.",
                "Received:",
                sizes,
            ],
        ),
    ]
    with tf.control_dependencies(checks):
        missing = tf.identity(missing)

    def pad(value):
        rank = value.shape.rank
        if rank == 0:
            return value
        value = tf.pad(value, [[0, missing], *[[0, 0]] * (rank - 1)])
        return tf.ensure_shape(value, shape[:rank])

    return missing > 0, {key: pad(value) for key, value in batch.items()}
