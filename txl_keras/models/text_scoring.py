"""Log-probabilities and hidden states of separate texts, in batches.

Letters: `B` texts of a batch, `T` segment, `M` memory, `D` hidden size, `P`
tokens of one text.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_list
from txl_keras.checks import check_no_empty_text
from txl_keras.checks import check_vocabulary
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.models.segment_reader import compile_segments
from txl_keras.models.segment_reader import padded_segment


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
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._segment_length = segment_length
        self._reader = SegmentReader(
            backbone, batch_size, segment_length, memory_length
        )
        self._nll, self._hidden = (
            compile_segments(self._reader, model, answer)
            for answer in (model.softmax, lambda x: tf.cast(x, tf.float32))
        )

    def score(self, texts, contexts=None):
        """Computes the loss of every token: see `score_texts`."""
        if contexts is None:
            contexts = [""] * len(texts)
        check_texts("contexts", contexts)
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
        ids = [self._encode(text) for text in texts]
        check_no_empty_text("texts", texts, ids)
        return self._read(self._hidden, [(text,) for text in ids])

    def _encode(self, text, context=""):
        begins_line = not context or context[-1:] in ("\n", b"\n")
        ids = self._tokenizer.encode(text, begins_line=begins_line)
        return np.asarray(ids, np.int32)

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
        shape = self._batch_size, self._segment_length
        inputs, *others = zip(*rows, strict=True)
        parts = []
        # At least once: a text of one token has no inputs, but needs a result.
        for start in range(0, max(1, *map(len, inputs)), self._segment_length):
            ids, lengths = padded_segment(inputs, start, *shape)
            more = [padded_segment(texts, start, *shape)[0] for texts in others]
            parts.append(read(ids, *more, lengths=lengths))
        outputs = np.concatenate(parts, axis=1)
        return [
            values[: len(text)]
            for values, text in zip(outputs, inputs, strict=False)
        ]


def check_texts(name, texts):
    """Raises `ValueError` unless an argument is a list of strings."""
    check_list(name, texts)
    for i, text in enumerate(texts):
        if not isinstance(text, (str, bytes)):
            raise ValueError(
                f"`{name}` must be a list of strings. Received: "
                f"{name}[{i}]={text!r}"
            )
