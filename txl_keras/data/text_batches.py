"""Batches of labelled texts of similar length."""

import functools
from collections.abc import Sequence

import keras
import numpy as np

from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_no_empty_text
from txl_keras.checks import check_token_ids
from txl_keras.data.segments import NUM_IDS
from txl_keras.data.step_batches import dataset_of


def pad_texts(token_ids: Sequence[np.ndarray], multiple_of: int = 1) -> dict:
    """Pads texts on the right, for `TransformerXLTextClassifier`.

    Args:
        token_ids: List of integer arrays of shape `(n,)`, n at least 1.
        multiple_of: Integer. The longest text's length is rounded up to a
            multiple of it, which is W.

    Returns:
        Dictionary of `token_ids`, int32 of shape `(B, W)`, and `lengths`, int32
        of shape `(B,)`.

    Example:

    >>> padded = pad_texts([[7, 8, 9], [5]])
    >>> padded["token_ids"].tolist(), padded["lengths"].tolist()
    ([[7, 8, 9], [5, 0, 0]], [3, 1])
    """
    check_integer("multiple_of", multiple_of, 1)
    check_list("token_ids", token_ids)
    token_ids = [np.asarray(ids) for ids in token_ids]
    for i, ids in enumerate(token_ids):
        if ids.ndim != 1 or not ids.size:
            raise ValueError(
                "`token_ids` must be arrays of shape (n,), n at least 1. "
                f"Received: shape {ids.shape} at index {i}"
            )
        check_token_ids(f"token_ids[{i}]", ids, NUM_IDS)
    lengths = np.array([len(ids) for ids in token_ids], np.int32)
    width = -(-lengths.max() // multiple_of) * multiple_of
    padded = keras.utils.pad_sequences(token_ids, width, padding="post")
    return {"token_ids": padded, "lengths": lengths}


class TextBatches:
    """Divides labelled texts into batches of texts of similar length.

    Batching similar lengths together keeps padding small. Each text occurs once
    per epoch. A batch depends only on the seed and the step.

    Args:
        token_ids: List of integer arrays of shape `(n,)`, n at least 1, the
            texts.
        label_ids: List of integers, one per text.
        batch_size: Integer, the maximum number of rows per batch.
        segment_length: Integer. Texts are padded to a multiple of it.
        max_batch_tokens: Integer, the maximum number of tokens per batch,
            including padding. A single longer text is a batch of one row.
        seed: Optional integer. By default every epoch is the same, from short
            to long texts, for evaluation. With a seed, each epoch shuffles
            texts with the same number of segments, and the batches.

    Example:

    >>> texts = [[1, 2, 3, 4, 5], [6], [7, 8, 9, 4], [2, 3]]
    >>> batches = TextBatches(texts, [0, 1, 0, 1], 2, segment_length=4)
    >>> batches.steps_per_epoch
    2
    >>> inputs, labels = batches.batch(0)
    >>> inputs["token_ids"].tolist(), labels.tolist()
    ([[6, 0, 0, 0], [7, 8, 9, 4]], [1, 0])
    """

    def __init__(
        self,
        token_ids: Sequence[np.ndarray],
        label_ids: Sequence[int],
        batch_size: int,
        segment_length: int,
        max_batch_tokens: int = 16384,
        seed: int | None = None,
    ):
        check_integer("batch_size", batch_size, 1)
        check_integer("max_batch_tokens", max_batch_tokens, 1)
        check_integer("segment_length", segment_length, 1)
        if not len(token_ids) or len(token_ids) != len(label_ids):
            raise ValueError(
                "`token_ids` and `label_ids` must have the same length, at "
                f"least 1. Received: {len(token_ids)} and {len(label_ids)}"
            )
        check_no_empty_text("token_ids", token_ids, token_ids)
        self._token_ids = token_ids
        self._segment_length = segment_length
        label_ids = check_token_ids("label_ids", label_ids, NUM_IDS)
        self._label_ids = np.asarray(label_ids, np.int32)
        self._seed = None if seed is None else check_integer("seed", seed, 0)
        self._segments = np.array(
            [-(-len(ids) // segment_length) for ids in token_ids]
        )
        # The first index of each batch. It is constant, because shuffling only
        # exchanges texts of equal padded length.
        self._starts = [0]
        for i, width in enumerate(np.sort(self._segments) * segment_length):
            rows = i + 1 - self._starts[-1]
            is_large = rows > 1 and rows * width > max_batch_tokens
            if is_large or rows > batch_size:
                self._starts.append(i)
        # Two epochs, because prefetching reads past the end of an epoch.
        self._cached_rows = functools.lru_cache(maxsize=2)(self._rows)

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of batches per epoch."""
        return len(self._starts)

    def order(self, epoch: int = 0) -> np.ndarray:
        """Returns the indices of all texts in an epoch, from short to long.

        The batches are consecutive parts of it, shuffled if there is a seed.
        """
        indices = np.arange(len(self._segments))
        if self._seed is not None:
            indices = self._rng(epoch).permutation(indices)
        return indices[np.argsort(self._segments[indices], kind="stable")]

    def batch(self, step: int) -> tuple:
        """Returns the batch of a step, from 0 on through all epochs.

        It is a pair of inputs as from `pad_texts` and int32 labels `(B,)`.
        """
        step = check_integer("step", step, 0)
        epoch, number = divmod(step, self.steps_per_epoch)
        rows = self._cached_rows(0 if self._seed is None else epoch)[number]
        inputs = pad_texts(
            [self._token_ids[i] for i in rows], self._segment_length
        )
        return inputs, self._label_ids[rows]

    def _rows(self, epoch):
        """Returns the indices of the texts of each batch of an epoch."""
        rows = np.split(self.order(epoch), self._starts[1:])
        if self._seed is None:
            return rows
        return [rows[i] for i in self._rng(epoch, 1).permutation(len(rows))]

    def _rng(self, *key):
        return np.random.default_rng((self._seed, *key))

    def dataset(self, num_steps: int | None = None) -> "tf.data.Dataset":
        """Returns a dataset of the first `num_steps` batches.

        Without a number it is infinite, and `fit` needs `steps_per_epoch`.
        """
        if num_steps is not None:
            check_integer("num_steps", num_steps, 1)
        row = tf.TensorSpec((None,), tf.int32)
        ids = tf.TensorSpec((None, None), tf.int32)
        spec = {"token_ids": ids, "lengths": row}, row
        return dataset_of(self.batch, spec, end=num_steps)
