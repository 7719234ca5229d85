"""Batches for `fit` and `evaluate` of a language model, from what users pass.

Letters: `B` batch, `T` segment.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.data.segments import Segments
from txl_keras.data.step_batches import distribute_rows


@dataclasses.dataclass(frozen=True)
class FitData:
    """Describes batches like those of `Segments`: dicts of static shapes."""

    make_dataset: Callable[[int], tf.data.Dataset]  # from a step on
    batch_size: int
    # None if unknown, or if there is no end.
    steps_per_epoch: int | None
    # Whether batches have an entry `reset`. If not, epochs begin a text.
    has_resets: bool
    # Whether the order may differ from epoch to epoch.
    has_epochs: bool = False
    segment_lengths: tuple[int, ...] | None = None

    def iterator(self, first_step, strategy):
        """Returns an iterator over the batches from a step on."""
        dataset = self.make_dataset(first_step).prefetch(tf.data.AUTOTUNE)
        return iter(distribute_rows(dataset, self.batch_size, strategy))


def fit_data(x, y, weights, batch_size, vocabulary_size):
    """Returns `FitData`, or `None` for what only Keras can read.

    `x` is a `Segments`, a `tf.data.Dataset`, or an array with `y` and
    optional `weights`.
    """
    if isinstance(x, Segments):
        return FitData(
            lambda step: _checked(x.dataset(step), vocabulary_size),
            x.batch_size,
            len(x),
            has_resets=True,
            has_epochs=True,
            segment_lengths=x.segment_lengths,
        )
    if isinstance(x, (np.ndarray, tf.Tensor)):
        parts = (x, y) if weights is None else (x, y, weights)
        x = tf.data.Dataset.from_tensor_slices(parts).batch(
            min(batch_size, len(x))
        )
    if not isinstance(x, tf.data.Dataset):
        return None
    dataset = _as_dicts(x, vocabulary_size)
    num_steps = int(x.cardinality())
    if num_steps == 0:
        raise ValueError("`x` must not be empty. Received: no batches")
    is_finite = num_steps > 0
    return FitData(
        lambda step: (
            dataset.repeat().skip(step % num_steps)
            if is_finite
            else dataset.skip(step)
        ),
        dataset.element_spec["inputs"].shape[0],
        num_steps if is_finite else None,
        has_resets="reset" in dataset.element_spec,
    )


def is_text(x):
    """Returns whether `x` is a string or a list of strings."""
    return isinstance(x, str) or (
        isinstance(x, (list, tuple))
        and len(x) > 0
        and all(isinstance(text, str) for text in x)
    )


def text_segments(texts, tokenizer, batch_size, segment_length, is_training):
    """Returns `Segments` of a text, or of texts that each begin cold."""
    if tokenizer is None or batch_size is None:
        name = "tokenizer" if tokenizer is None else "batch_size"
        raise ValueError(
            f"`{name}` must be given with text as `x`: build the model with "
            "`tokenizer`, and pass the number of rows that are read in "
            f"parallel as `batch_size`. Received: {name}=None"
        )
    ids = [
        tokenizer.encode(text)
        for text in ([texts] if isinstance(texts, str) else texts)
    ]
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


def _as_dicts(dataset, vocabulary_size):
    """Maps a dataset of tuples or dicts to dicts of static shapes."""
    is_dict = isinstance(dataset.element_spec, dict)

    def parts(*element):
        """Returns a dict of what an element holds."""
        if is_dict:
            return dict(element[0])
        x, y, weights = keras.utils.unpack_x_y_sample_weight(
            element if len(element) > 1 else element[0]
        )
        named = {"inputs": x, "targets": y, "weights": weights}
        return {key: value for key, value in named.items() if value is not None}

    dataset = dataset.map(parts)
    _check_keys(dataset.element_spec)
    shape = dataset.element_spec["inputs"].shape
    if not shape.is_fully_defined():
        # All batches must be as large as the first, but the last may be short.
        shape = next(iter(dataset))["inputs"].shape
    complete = functools.partial(
        _complete, shape=shape, mean_of_all=not is_dict
    )
    return _checked(dataset.map(complete), vocabulary_size)


def _check_keys(spec):
    known = {"inputs", "targets", "weights", "num_targets", "reset"}
    if not {"inputs", "targets"} <= set(spec) <= known:
        raise ValueError(
            "`x` must be `Segments`, arrays with `y`, or a dataset of pairs "
            "(inputs, targets), of triples with sample weights, or of dicts "
            f"with the keys inputs and targets, and others of {sorted(known)}. "
            f"Received: a dataset of {sorted(spec)}"
        )


def _complete(batch, shape, mean_of_all):
    """Returns a batch with all entries, padded to `shape`, `(B, T)`.

    With `mean_of_all`, weights do not change the number that the sum of losses
    is divided by, as in `keras.losses`.
    """
    inputs, targets = batch["inputs"], batch["targets"]
    rows = tf.shape(inputs)[0]
    targets = check_shape_in_graph("y", targets, ops.shape(inputs))
    weights = tf.cast(batch.get("weights", 1.0), tf.float32)
    if weights.shape.rank == 1:
        weights = weights[:, None]
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    num_targets = tf.reduce_sum(weights)
    if mean_of_all:
        num_targets = tf.cast(tf.size(inputs), tf.float32)
    padded = {"inputs": inputs, "targets": targets, "weights": weights}
    if "reset" in batch:
        padded["reset"] = tf.cast(batch["reset"], tf.bool)
    missing = shape[0] - rows
    message = f"All batches must have the shape {shape} of the first one."
    tf.debugging.assert_greater_equal(missing, 0, message)
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


def _checked(dataset, vocabulary_size):
    """Checks ids in the pipeline, since XLA could not raise an error."""

    def check(batch):
        names = {"inputs": "x", "targets": "y"}
        ids = {
            key: tf.cast(
                check_token_ids(name, batch[key], vocabulary_size), tf.int32
            )
            for key, name in names.items()
        }
        return {**batch, **ids}

    return dataset.map(check)
