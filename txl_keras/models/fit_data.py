"""Datasets for `fit` and `evaluate` of a language model, from user data."""

import itertools

import keras
import numpy as np

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.data.segments import Segments
from txl_keras.data.step_batches import dataset_of

_BATCH_SIZE = 32  # for texts, by default
_KEYS = {"inputs", "targets", "weights", "num_targets", "reset"}


class EpochStarts(keras.callbacks.Callback):
    """Starts epochs of the data of `fit`, and stops at a loss of NaN."""

    num_steps = first_step = 0
    py_dataset = None

    def of_segments(self, segments, num_steps=None):
        """Returns the batches of one epoch; the next resumes where it ended."""
        num_steps = num_steps or len(segments)
        self.num_steps = check_integer("steps_per_epoch", num_steps, 1)
        return Indexed(
            lambda step: segments.batch(self.first_step + step), num_steps
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


class Indexed:
    """Reads `length` batches with `batch(index)` again in each iteration."""

    def __init__(self, batch, length):
        self.batch, self._length = batch, length

    def __len__(self):
        return self._length

    def __iter__(self):
        return map(self.batch, range(self._length))


def of_arrays(x, y, weights, batch_size):
    """Returns the batches of arrays."""
    arrays = [
        part if part is None else np.asarray(part) for part in (x, y, weights)
    ]
    _check_weights(arrays[2], len(x))

    def batch(index):
        rows = slice(index * batch_size, (index + 1) * batch_size)
        parts = (part if part is None else part[rows] for part in arrays)
        return keras.utils.pack_x_y_sample_weight(*parts)

    return Indexed(batch, -(-len(x) // batch_size))


def _check_weights(weights, num_rows):
    """Raises `ValueError` unless there are weights for each row, or none."""
    received = () if weights is None else np.shape(weights)
    if received and received[0] != num_rows:
        raise ValueError(
            f"`sample_weight` must have {num_rows} rows like `x`. Received: "
            f"sample_weight.shape={received}"
        )


class Batches:
    """Completes batches of token ids, read in order, to dicts of one shape."""

    # If it `begins_cold`, the first batch resets all rows. With `steps` per
    # epoch the data has no end.

    def __init__(self, source, vocabulary_size, steps=None, begins_cold=True):
        self._vocabulary_size = vocabulary_size
        self._begins_cold = begins_cold
        self._has_end = steps is None
        if hasattr(source, "as_numpy_iterator"):  # of tf.data
            number = int(source.cardinality())
            self._read = source.as_numpy_iterator
            spec = keras.tree.flatten(source.element_spec)
            has_shapes = all(x.shape.is_fully_defined() for x in spec)
        else:
            is_list = isinstance(source, (list, tuple))
            if is_list or not hasattr(source, "__iter__"):
                raise ValueError(
                    "`x` must be an array, text, `Segments` or a dataset. "
                    "Convert ids with `np.asarray`. Received: "
                    f"x={shown(source)}"
                )
            number = getattr(source, "num_batches", None)
            if hasattr(source, "__len__"):
                number = len(source)
            self._read = lambda: iter(source)
            has_shapes = False
        iterator = self._read()
        is_generator = iterator is source
        needs_steps = number == -1 or is_generator and not ON_TENSORFLOW
        if self._has_end and needs_steps:
            raise ValueError(
                "`steps_per_epoch`, `validation_steps` or `steps` must be "
                "given with a dataset that has no end, and on JAX and PyTorch "
                "with a generator"
            )
        if has_shapes and number != 0:
            # A large shuffle buffer would be filled twice to read a batch.
            first = keras.tree.map_structure(
                lambda x: np.empty(x.shape, x.dtype.as_numpy_dtype),
                source.element_spec,
            )
        else:
            first = next(iterator, None)
        if first is None:
            raise ValueError("`x` must not be empty. Received: no batches")
        if is_generator:
            rest = itertools.chain([first], iterator)
            self._read = lambda: rest
        is_known = number is not None and number >= 0
        if self._has_end and not is_known and not ON_TENSORFLOW:
            number, is_known = sum(1 for _ in self._read()), True
        # The number of batches per epoch, `None` if there is no end.
        self.number = number if self._has_end and is_known else None
        inputs = np.asarray(_entries_of(first)["inputs"])
        check_shape("x", inputs, (None, None), "Each batch must be (B, T)")
        self.shape = inputs.shape

    def __iter__(self):
        while True:
            is_first, was_short = True, False
            for batch in self._read():
                yield self.complete(batch, is_first, was_short)
                is_first = False
                was_short = len(_entries_of(batch)["inputs"]) < self.shape[0]
            if is_first:
                raise ValueError(
                    "`x` must have batches for every epoch: a generator can be "
                    "read only once."
                )
            if self._has_end:
                return

    def complete(self, batch, is_first, was_short=False):
        """Returns a batch with all entries; checks them."""
        given = _entries_of(batch)
        inputs, targets = (
            np.asarray(
                check_token_ids(name, ids, self._vocabulary_size), "int32"
            )
            for name, ids in (("x", given["inputs"]), ("y", given["targets"]))
        )
        check_shape("y", targets, inputs.shape)
        weights = np.asarray(given.get("weights", 1.0), "float32")
        if not np.isfinite(weights).all():
            raise ValueError(
                "`sample_weight` must be finite. Received: NaN or infinity"
            )
        received = weights.shape
        if weights.ndim < 2:
            _check_weights(weights, len(inputs))
            weights = weights.reshape(-1, 1)
        if weights.ndim != 2 or any(
            size not in (1, full)  # one row or column counts for all
            for size, full in zip(weights.shape, inputs.shape, strict=True)
        ):
            rows, length = inputs.shape
            raise ValueError(
                f"`sample_weight` must have the shape ({rows},) or one that "
                f"broadcasts to ({rows}, {length}). Received: "
                f"sample_weight.shape={received}"
            )
        weights = np.broadcast_to(weights, inputs.shape)
        sizes, expected = inputs.shape, self.shape
        if sizes[0] > expected[0] or sizes[1:] != expected[1:] or was_short:
            received = (
                "fewer rows before the last batch" if was_short else sizes
            )
            raise ValueError(
                f"All batches must have the shape {expected} of the first one; "
                "only the last may have fewer rows. Use `drop_remainder=True` "
                f"where the data is batched. Received: {received}"
            )
        completed = {
            "inputs": inputs,
            "targets": targets,
            "weights": weights,
            "reset": np.asarray(given.get("reset", np.zeros(sizes[0])), bool),
        }
        missing = expected[0] - sizes[0]
        for name, x in completed.items():
            padding = [(0, missing), *[(0, 0)] * (x.ndim - 1)]
            completed[name] = np.pad(x, padding)
        if is_first and self._begins_cold:
            completed["reset"][:] = True
        num_targets = inputs.size  # as in `keras.losses`
        if isinstance(batch, dict):
            num_targets = np.max(given.get("num_targets", weights.sum()))
        # One per row, because Keras distributes rows to replicas.
        num_targets = np.full(expected[0], num_targets, "float32")
        return {**completed, "num_targets": num_targets}


def complete(x, vocabulary_size, steps=None, begins_cold=True):
    """Returns `Batches` in the form that Keras reads."""
    batches = Batches(x, vocabulary_size, steps, begins_cold)
    if not ON_TENSORFLOW:
        from txl_keras.models.keras_steps import KerasBatches

        return KerasBatches(batches)
    rows = batches.shape[:1]
    spec = {
        "inputs": tf.TensorSpec(batches.shape, tf.int32),
        "targets": tf.TensorSpec(batches.shape, tf.int32),
        "weights": tf.TensorSpec(batches.shape, tf.float32),
        "reset": tf.TensorSpec(rows, tf.bool),
        "num_targets": tf.TensorSpec(rows, tf.float32),
    }
    if isinstance(x, Indexed):
        dataset = dataset_of(
            lambda step: batches.complete(x.batch(step), step == 0),
            spec,
            end=len(x),
        )
        return dataset if steps is None else dataset.repeat()
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=spec
    )
    if batches.number is not None:
        cardinality = tf.data.experimental.assert_cardinality(batches.number)
        dataset = dataset.apply(cardinality)
    return dataset.prefetch(tf.data.AUTOTUNE)


def check_arrays(x, y, batch_size, vocabulary_size):
    """Checks arrays for mistakes that Keras would not report."""
    if not isinstance(x, np.ndarray):
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
        # Or an array of another library, or a variable.
        return np.asarray(x) if hasattr(x, "__array__") else x
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
    """Checks a length; raises `ValueError` for data other than text."""
    if segment_length is None:
        return
    check_integer("segment_length", segment_length, 1)
    if not any(map(is_text, data)):
        raise ValueError(
            "`segment_length` must be None unless `x` is text, which is `str`: "
            "other data is in segments already. Received: "
            f"segment_length={shown(segment_length)}, x={shown(data[0])}"
        )


def text_segments(ids, batch_size, segment_length, drop_remainder, replicas=1):
    """Returns `Segments` of texts' ids; each text has a cold start."""
    if batch_size is None:  # Keras's default, or fewer for a short text
        num_segments = (len(ids[0]) - 1) // segment_length
        if len(ids) > 1:  # no segment holds parts of two texts
            num_segments = sum(-(-(len(x) - 1) // segment_length) for x in ids)
        batch_size = min(_BATCH_SIZE, num_segments)
        batch_size = replicas * max(1, batch_size // replicas)
    options = {}
    if len(ids) > 1:
        starts = np.cumsum([0, *map(len, ids[:-1])])
        options = {"documents": starts, "reset_documents": True}
    return Segments(
        np.concatenate(ids),
        batch_size,
        segment_length,
        drop_remainder=drop_remainder,
        **options,
    )


def _entries_of(batch):
    """Returns a batch's entries by name; raises `ValueError` if it is unfit."""
    if not isinstance(batch, dict):
        parts = keras.utils.unpack_x_y_sample_weight(batch)
        batch = dict(zip(("inputs", "targets", "weights"), parts, strict=True))
    given = {key: value for key, value in batch.items() if value is not None}
    if not {"inputs", "targets"} <= set(given) <= _KEYS:
        raise ValueError(
            "`x` must be `Segments`, arrays with `y`, or a dataset of pairs "
            "(inputs, targets), of triples with sample weights, or of dicts "
            f"with the keys inputs and targets, and others of {sorted(_KEYS)}. "
            f"Received: batches of {sorted(given)}"
        )
    return given


def check_trainable(model):
    """Raises `ValueError` for a model that `fit` cannot change."""
    if not model.trainable_variables:
        raise ValueError(
            "`model` must have trainable weights. Set `trainable` of the "
            "model or of a layer to True, and compile again. Received: "
            f"model={model.name!r}, all weights frozen"
        )
