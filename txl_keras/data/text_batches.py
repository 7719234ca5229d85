"""Batches of texts of about the same length, with their labels.

Letters: `B` rows of a batch, `W` tokens of the longest of them.
"""

import itertools

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_token_ids
from txl_keras.data.segments import NUM_IDS


def pad_texts(token_ids, multiple_of=1):
    """Pads texts on the right, for `TransformerXLTextClassifier`.

    Args:
        token_ids: List of integer arrays `(n,)`, n at least 1.
        multiple_of: Integer, of which W is a multiple.

    Returns:
        Dictionary of `token_ids`, int32 `(B, W)`, and `lengths`, int32 `(B,)`.

    Raises:
        ValueError: If there is no text, one without a token, or an id that is
            no integer of at least 0.

    Example:

    >>> padded = pad_texts([[7, 8, 9], [5]])
    >>> padded["token_ids"].tolist(), padded["lengths"].tolist()
    ([[7, 8, 9], [5, 0, 0]], [3, 1])
    """
    check_integer("multiple_of", multiple_of, 1)
    check_list("token_ids", token_ids)
    token_ids = [np.asarray(ids) for ids in token_ids]
    for i, ids in enumerate(token_ids):
        if ids.ndim != 1:
            raise ValueError(
                "`token_ids` must be a list of arrays of shape (n,). "
                f"Received: shape {ids.shape} at index {i}"
            )
        if ids.size:
            check_token_ids(f"token_ids[{i}]", ids, NUM_IDS)
    lengths = np.array([len(ids) for ids in token_ids], np.int32)
    if not lengths.size or not lengths.min():
        raise ValueError(
            "`token_ids` must be texts of at least one token each. Received: "
            f"{len(lengths)} texts, lengths {lengths.tolist()!s:.60}"
        )
    width = -(-lengths.max() // multiple_of) * multiple_of
    padded = np.zeros((len(lengths), width), np.int32)
    for row, ids in zip(padded, token_ids, strict=True):
        row[: len(ids)] = ids
    return {"token_ids": padded, "lengths": lengths}


class TextBatches:
    """Cuts an epoch into batches of texts of about the same length.

    Short texts come with short ones, so little is padding. Each text comes
    once an epoch. A batch is a function of the seed and the step alone.

    Args:
        token_ids: List of integer arrays `(n,)`, n at least 1, the texts.
        label_ids: List of as many integers.
        batch_size: Integer, the most rows of a batch.
        segment_length: Integer, of which W is a multiple.
        max_batch_tokens: Integer, the most tokens of a batch with its padding:
            batches of long texts have fewer rows, and the space that a step
            takes is bounded. One text is always taken whole.
        seed: Optional integer. By default every epoch is the same, from short
            to long, for evaluation. With a seed, texts of as many segments are
            mixed, and then the batches, in another way each epoch.

    Raises:
        ValueError: If there is no text, if there are not as many labels, if a
            label is no integer of at least 0, or a number is out of its range.

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
        token_ids,
        label_ids,
        batch_size,
        segment_length,
        max_batch_tokens=16384,
        seed=None,
    ):
        check_integer("batch_size", batch_size, 1)
        check_integer("max_batch_tokens", max_batch_tokens, 1)
        self._segment_length = check_integer(
            "segment_length", segment_length, 1
        )
        check_list("token_ids", token_ids)
        check_list("label_ids", label_ids)
        if not len(token_ids) or len(token_ids) != len(label_ids):
            raise ValueError(
                "`token_ids` and `label_ids` must be as many, at least one. "
                f"Received: {len(token_ids)} and {len(label_ids)}"
            )
        self._token_ids = token_ids
        label_ids = check_token_ids("label_ids", label_ids, NUM_IDS)
        self._label_ids = np.asarray(label_ids, np.int32)
        self._seed = None if seed is None else check_integer("seed", seed, 0)
        self._segments = np.array(
            [-(-len(ids) // segment_length) for ids in token_ids]
        )
        # The same for every epoch: the order changes among equals alone.
        self._starts = _starts(
            np.sort(self._segments) * segment_length,
            batch_size,
            max_batch_tokens,
        )

    @property
    def steps_per_epoch(self):
        """Integer."""
        return len(self._starts)

    def order(self, epoch=0):
        """Indices of the texts as an epoch has them, batches not yet mixed."""
        mixed = np.arange(len(self._segments))
        if self._seed is not None:
            mixed = self._rng(epoch).permutation(mixed)
        return mixed[np.argsort(self._segments[mixed], kind="stable")]

    def batch(self, step):
        """The batch of a step.

        Args:
            step: Integer, counted on through the epochs.

        Returns:
            Pair of inputs, as `pad_texts` makes them, and int32 labels `(B,)`.
        """
        step = check_integer("step", step, 0)
        epoch, number = divmod(step, self.steps_per_epoch)
        if self._seed is not None:
            number = self._rng(epoch, 1).permutation(self.steps_per_epoch)[
                number
            ]
        stops = [*self._starts[1:], len(self._segments)]
        rows = self.order(epoch)[self._starts[number] : stops[number]]
        inputs = pad_texts(
            [self._token_ids[i] for i in rows], self._segment_length
        )
        return inputs, self._label_ids[rows]

    def _rng(self, *key):
        return np.random.default_rng((self._seed, *key))

    def dataset(self, num_steps=None):
        """The batches from the first step on.

        Args:
            num_steps: Optional integer. None is without end: say
                `steps_per_epoch` to `fit`.

        Returns:
            `tf.data.Dataset`.
        """

        def generate():
            steps = itertools.count() if num_steps is None else range(num_steps)
            return map(self.batch, steps)

        row = tf.TensorSpec((None,), tf.int32)
        ids = tf.TensorSpec((None, None), tf.int32)
        dataset = tf.data.Dataset.from_generator(
            generate,
            output_signature=({"token_ids": ids, "lengths": row}, row),
        )
        if num_steps is not None:  # what Keras wants to know
            dataset = dataset.apply(
                tf.data.experimental.assert_cardinality(num_steps)
            )
        return dataset.prefetch(2)


def _starts(widths, batch_size, max_batch_tokens):
    """Where batches begin among texts sorted by their padded lengths."""
    starts = [0]
    for i, width in enumerate(widths):
        rows = i + 1 - starts[-1]
        if rows > batch_size or (rows > 1 and rows * width > max_batch_tokens):
            starts.append(i)
    return starts
