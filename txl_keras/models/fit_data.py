"""Datasets for `fit` and `evaluate` of a language model, from user data.

Letters: `B` batch, `T` segment.
"""

import itertools

import keras
import numpy as np
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.checks import checked
from txl_keras.checks import shown
from txl_keras.data.segments import Segments
from txl_keras.data.step_batches import dataset_of

_BATCH_SIZE = 32  # for texts, by default
ARRAYS = (np.ndarray, tf.Tensor) if ON_TENSORFLOW else np.ndarray
_KEYS = {"inputs", "targets", "weights", "num_targets", "reset"}


class EpochStarts(keras.callbacks.Callback):
    """Starts epochs of the data of `fit`, and stops at a loss of NaN."""

    num_steps = first_step = 0
    py_dataset = None

    def of_segments(self, segments, num_steps=None):
        """Returns a dataset of one epoch; the next resumes where it ended."""
        self.num_steps = num_steps = num_steps or len(segments)
        check_integer("steps_per_epoch", num_steps, 1)
        if not ON_TENSORFLOW:
            return Repeated(
                lambda: (
                    segments.batch(self.first_step + step)
                    for step in range(num_steps)
                ),
                num_steps,
            )
        spec = tf.nest.map_structure(tf.type_spec_from_value, segments.batch(0))
        return dataset_of(
            lambda step: segments.batch(self.first_step + step),
            spec,
            end=num_steps,
        )

    def on_epoch_begin(self, epoch, logs=None):
        self.first_step = epoch * self.num_steps
        if self.py_dataset is not None:
            self.py_dataset.on_epoch_begin()

    def on_train_batch_end(self, batch, logs=None):
        # A user's `train_step` may return other metrics.
        loss = float(logs.get("loss", 0.0))
        # In float16 a step that overflows is skipped.
        if not np.isfinite(loss) and self.model.compute_dtype != "float16":
            raise FloatingPointError(
                f"After batch {batch} of this epoch the loss is {loss}. Lower "
                "the learning rate or warm up for longer."
            )

    def on_epoch_end(self, epoch, logs=None):
        if self.py_dataset is not None:
            self.py_dataset.on_epoch_end()


class Repeated:
    """Reads `length` batches with `read()` again in each iteration."""

    def __init__(self, read, length):
        self._read, self._length = read, length

    def __len__(self):
        return self._length

    def __iter__(self):
        return iter(self._read())


def of_arrays(x, y, weights, batch_size):
    """Returns a dataset of the batches of arrays."""
    # Keras cuts arrays into batches of unknown size, but CPU graphs are faster
    # with a static batch size.
    batch_size = min(batch_size, len(x))
    parts = keras.utils.pack_x_y_sample_weight(x, y, weights)
    if not ON_TENSORFLOW:
        starts = range(0, len(x), batch_size)
        return Repeated(
            lambda: (
                keras.tree.map_structure(
                    lambda part, i=i: part[i : i + batch_size], parts
                )
                for i in starts
            ),
            len(starts),
        )
    return tf.data.Dataset.from_tensor_slices(parts).batch(
        batch_size, drop_remainder=not len(x) % batch_size
    )


def complete(x, vocabulary_size, steps=None, begins_cold=True):
    """Returns the batches of `x` as a dataset of dicts of static shapes.

    On backends other than TensorFlow the elements are triples: see `Batches`.

    If it `begins_cold`, the first batch resets all rows. With `steps` per epoch
    the dataset repeats.
    """
    if not ON_TENSORFLOW:
        from txl_keras.models.keras_steps import Batches

        return Batches(x, vocabulary_size, steps, begins_cold)
    first = None
    if not isinstance(x, tf.data.Dataset):
        x, first = _generated(x)
    if steps is None and x.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "`steps_per_epoch`, `validation_steps` or `steps` must be given "
            "with a dataset that has no end"
        )
    specs = tf.nest.flatten(x.element_spec)
    is_known = all(spec.shape.is_fully_defined() for spec in specs)
    if first is None and (not is_known or x.cardinality() == 0):
        first = first_of(x)

    @tf.autograph.experimental.do_not_convert
    def fill(was_short, step_and_batch):
        step, batch = step_and_batch
        first_inputs = _parts(batch if first is None else first).get("inputs")
        batch = complete_batch(batch, vocabulary_size)
        # All batches must be as long as the first, but may have fewer rows.
        rows, length = first_inputs.shape
        sizes = tf.shape(batch["inputs"])
        missing = checked(
            rows - sizes[0],
            (sizes[0] <= rows) & (sizes[1] == length) & ~was_short,
            f"All batches must have the shape {(rows, length)} of the first "
            "one; only the last may have fewer rows. Received:",
            sizes,
        )

        def pad(value):
            rank = value.shape.rank
            value = tf.pad(value, [[0, missing], *[[0, 0]] * (rank - 1)])
            return tf.ensure_shape(value, (rows, length)[:rank])

        num_targets = tf.fill([rows], batch["num_targets"][0])
        batch = {key: pad(value) for key, value in batch.items()}
        reset = batch["reset"] | (step == 0)
        batch |= {"num_targets": num_targets, "reset": reset}
        return missing > 0, batch

    steps_and_batches = x.enumerate(start=0 if begins_cold else 1)
    dataset = steps_and_batches.scan(False, fill)
    if steps is not None:
        dataset = dataset.repeat()
    return dataset.prefetch(tf.data.AUTOTUNE)


def _generated(batches):
    """Returns a dataset of an iterable's batches, and the first batch."""
    check_iterable(batches)
    iterator = iter(batches)
    is_generator = iterator is batches
    first = first_of(iterator)
    if is_generator:
        batches = itertools.chain([first], iterator)
    times = itertools.count()

    def read():
        if next(times) and is_generator:
            raise ValueError(
                "`x` must have batches for every epoch: a generator can be "
                "read only once."
            )
        yield from map(_arrays, batches)

    first = _arrays(first)
    dataset = tf.data.Dataset.from_generator(
        read,
        output_signature=tf.nest.map_structure(
            lambda array: tf.TensorSpec([None] * array.ndim, array.dtype),
            first,
        ),
    )
    num_batches = getattr(batches, "num_batches", None)  # of a `PyDataset`
    if num_batches is not None:
        cardinality = tf.data.experimental.assert_cardinality(num_batches)
        dataset = dataset.apply(cardinality)
    return dataset, first


def check_iterable(batches):
    """Raises `ValueError` if `x` is not an iterable of batches."""
    if isinstance(batches, (list, tuple)) or not hasattr(batches, "__iter__"):
        raise ValueError(
            "`x` must be an array, text, `Segments` or a dataset. Convert "
            f"ids with `np.asarray`. Received: x={shown(batches)}"
        )


def first_of(batches):
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
    if not isinstance(x, ARRAYS):
        return
    if batch_size is None:
        raise ValueError(
            "`batch_size` must be given with arrays: samples r, r + "
            "batch_size, r + 2 batch_size are read as one text. Pass the "
            "batch size of `Segments`, or len(x) if each sample is a "
            "separate text. Received: batch_size=None"
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


def check_class_weight(class_weight):
    """Raises `ValueError` if class weights are given."""
    if class_weight is not None:
        raise ValueError(
            "`class_weight` must be None: Keras would apply it to the wrong "
            "axis. Pass `sample_weight=weights[y]`, with `weights` an array of "
            "one weight per token id"
        )


def as_data(x):
    """Converts texts to a string or a list of strings, and arrays to NumPy."""
    if isinstance(x, (str, list, tuple)):
        return x
    if not is_text(x):
        # An array of another library, or a variable.
        is_array = hasattr(x, "__array__") and not isinstance(x, ARRAYS)
        return np.asarray(x) if is_array else x
    if hasattr(x, "as_numpy_iterator"):
        if x.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "A dataset of strings must have an end, because all strings "
                "are read before the first step. Use its `take`. Received: "
                f"{shown(x)}"
            )
        x = [text for part in x.as_numpy_iterator() for text in np.ravel(part)]
    array = np.asarray(x)
    texts = [
        text.decode("utf-8") if isinstance(text, bytes) else text
        for text in array.ravel().tolist()
    ]
    return texts if array.ndim else texts[0]


def is_text(x):
    """Returns whether `x` are strings: one, a list, an array or a dataset."""
    if isinstance(x, (list, tuple)):
        return len(x) > 0 and all(isinstance(text, str) for text in x)
    dtype = getattr(getattr(x, "element_spec", x), "dtype", None)
    # NumPy's arrays of strings, of bytes and of objects.
    is_array = getattr(dtype, "kind", None) in (*"USO",)
    is_tensor = getattr(dtype, "name", None) == "string"
    return isinstance(x, str) or is_array or is_tensor


def check_segment_length(segment_length, *data):
    """Raises `ValueError` if a length is given for data other than text."""
    if segment_length is not None and not any(map(is_text, data)):
        raise ValueError(
            "`segment_length` must be None unless `x` is text: other data "
            "is in segments already. Received: "
            f"segment_length={shown(segment_length)}, x={shown(data[0])}"
        )


def text_segments(ids, batch_size, segment_length, is_training):
    """Returns `Segments` of texts' ids; each text has a cold start."""
    if batch_size is None:  # Keras's default, or fewer for a short text
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
    """Returns an element of a dataset, or its spec, as a dict."""
    if isinstance(element, dict):
        return dict(element)
    x, y, weights = keras.utils.unpack_x_y_sample_weight(element)
    named = {"inputs": x, "targets": y, "weights": weights}
    return {key: value for key, value in named.items() if value is not None}


def entries_of(batch):
    """Returns a batch's entries by name; raises `ValueError` if it is unfit."""
    given = _parts(batch)
    if not {"inputs", "targets"} <= set(given) <= _KEYS:
        raise ValueError(
            "`x` must be `Segments`, arrays with `y`, or a dataset of pairs "
            "(inputs, targets), of triples with sample weights, or of dicts "
            f"with the keys inputs and targets, and others of {sorted(_KEYS)}. "
            f"Received: batches of {sorted(given)}"
        )
    return given


def complete_batch(batch, vocabulary_size):
    """Returns a batch as a dict with all entries; checks the token ids."""
    # Done before a step, because XLA could not raise an error.
    given = entries_of(batch)
    inputs, targets = (
        tf.cast(check_token_ids(name, ids, vocabulary_size), tf.int32)
        for name, ids in (("x", given["inputs"]), ("y", given["targets"]))
    )
    check_shape("x", inputs, (None, None), "Each batch must be (B, T)")
    targets = check_shape_in_graph("y", targets, ops.shape(inputs))
    weights = tf.cast(given.get("weights", 1.0), tf.float32)
    weights = checked(
        weights,
        tf.reduce_all(tf.math.is_finite(weights)),
        "`sample_weight` must be finite. Received: NaN or infinity",
    )
    if weights.shape.rank == 1:
        weights = weights[:, None]
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    num_targets = tf.reduce_sum(weights)
    if not isinstance(batch, dict):  # as in `keras.losses`
        num_targets = tf.cast(tf.size(inputs), tf.float32)
    rows = tf.shape(inputs)[:1]
    return {
        "inputs": inputs,
        "targets": targets,
        "weights": weights,
        # One per row, because Keras distributes rows to replicas.
        "num_targets": tf.fill(rows, given.get("num_targets", num_targets)),
        "reset": tf.cast(given.get("reset", tf.zeros(rows)), tf.bool),
    }


def check_trainable(model):
    """Raises `ValueError` for a model that `fit` cannot change."""
    if not model.trainable_variables:
        raise ValueError(
            "`model` must have trainable weights. Set `trainable` of the "
            "model or of a layer to True, and compile again. Received: "
            f"model={model.name!r}, all weights frozen"
        )
