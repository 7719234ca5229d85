"""Log-probabilities and hidden states of separate texts, in batches.

Letters: `B` texts of a batch, `T` segment, `M` memory, `D` hidden size, `P`
tokens of one text.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_no_empty_text
from txl_keras.checks import check_vocabulary
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.training.compilation import compile_layers
from txl_keras.training.compilation import compile_replica_function


def default_batch_size(texts):
    """Returns the number of texts, at most 16, after a check of `texts`."""
    _check_list("texts", texts)
    return max(1, min(16, len(texts)))


class TextScorer:
    """Scores or embeds texts of different lengths, in batches of `B`."""

    # Each text is read independently of the others, in segments, with memory
    # carried from one to the next. So time and space per token are bounded.

    def __init__(
        self,
        model,
        tokenizer,
        batch_size=16,
        segment_length=128,
        memory_length=None,
    ):
        backbone = model.backbone
        check_vocabulary(tokenizer, backbone.vocabulary_size)
        backbone.check_takes_padding()
        self._model = model
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._segment_length = segment_length
        self._reader = SegmentReader(
            backbone, batch_size, segment_length, memory_length
        )
        strategy = tf.distribute.get_strategy()
        self._nll, self._hidden = (
            compile_layers(read, strategy, model, training=False)
            for read in (self._read_nll, self._read_hidden)
        )
        self._remember = compile_replica_function(
            self._reader.remember, strategy
        )

    def score(self, texts, contexts=None):
        """Computes the loss of every token: see `score_texts`."""
        _check_list("texts", texts)
        if contexts is None:
            contexts = [""] * len(texts)
        _check_list("contexts", contexts)
        if len(contexts) != len(texts):
            raise ValueError(
                "`contexts` must be as many as `texts`. Received: "
                f"{len(contexts)} contexts, {len(texts)} texts"
            )
        before = [self._encode(context) for context in contexts]
        ids = [
            self._encode(text, context)
            for text, context in zip(texts, contexts, strict=True)
        ]
        check_no_empty_text("texts", texts, ids)
        whole = [
            np.concatenate(parts) for parts in zip(before, ids, strict=True)
        ]
        found = self._read(self._nll, [(w[:-1], w[1:]) for w in whole])
        # NaN for the first token, then the context, which is cut off.
        return [
            (text, np.append(np.float32(np.nan), nll)[-len(text) :])
            for text, nll in zip(ids, found, strict=True)
        ]

    def embed(self, texts):
        """Returns the hidden states of the last layer: see `embed_texts`."""
        _check_list("texts", texts)
        ids = [self._encode(text) for text in texts]
        check_no_empty_text("texts", texts, ids)
        return self._read(self._hidden, [(text,) for text in ids])

    def _encode(self, text, context=""):
        begins_line = not context or context[-1:] in ("\n", b"\n")
        ids = self._tokenizer.encode(text, begins_line=begins_line)
        return np.asarray(ids, np.int32)

    def _read_nll(self, inputs, targets):
        hidden, entries = self._reader.read(inputs)
        return self._model.softmax(hidden, targets), entries

    def _read_hidden(self, inputs):
        hidden, entries = self._reader.read(inputs)
        return tf.cast(hidden, tf.float32), entries

    def _read(self, read, texts):
        """Applies `read` to tuples of ids `(n,)`; returns arrays `(n, ...)`."""
        self._reader.begin()
        found = [None] * len(texts)
        # Batches of similar lengths need little padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
        for start in range(0, len(order), self._batch_size):
            rows = order[start : start + self._batch_size]
            batch = self._read_batch(read, [texts[i] for i in rows])
            for i, outputs in zip(rows, batch, strict=True):
                found[i] = outputs
        return found

    def _read_batch(self, read, rows):
        self._reader.reset_rows(tf.fill((self._batch_size,), True))
        lengths = np.zeros(self._batch_size, np.int32)
        lengths[: len(rows)] = [len(row[0]) for row in rows]
        parts = [[] for _ in rows]
        # At least once: a text of one token has no inputs, but needs a result.
        for start in range(0, max(1, lengths.max()), self._segment_length):
            arguments = [
                self._segment(arrays, start)
                for arrays in zip(*rows, strict=True)
            ]
            outputs, entries = read(*arguments)
            left = np.clip(lengths - start, 0, self._segment_length)
            self._remember(entries, tf.constant(left, tf.int32))
            outputs = outputs.numpy()
            for part, values, count in zip(parts, outputs, left, strict=False):
                part.append(values[:count])
        return [np.concatenate(part) for part in parts]

    def _segment(self, arrays, start):
        """Returns T ids of each row from `start` on, int32 `(B, T)`."""
        segment = np.zeros((self._batch_size, self._segment_length), np.int32)
        for row, ids in zip(segment, arrays, strict=False):
            ids = ids[start : start + self._segment_length]
            row[: len(ids)] = ids
        return tf.constant(segment)


def _check_list(name, texts):
    if isinstance(texts, (str, bytes)):
        raise ValueError(
            f"`{name}` must be a list of strings. Received: the string "
            f"{texts[:40]!r}. Put it in a list."
        )
    if not isinstance(texts, (Sequence, np.ndarray)):
        raise ValueError(
            f"`{name}` must be a list of strings. Received: {texts!r} of type "
            f"{type(texts).__name__}"
        )
    for i, text in enumerate(texts):
        if not isinstance(text, (str, bytes)):
            raise ValueError(
                f"`{name}` must be a list of strings. Received: "
                f"{name}[{i}]={text!r}"
            )
