"""Log-probabilities and hidden states of separate texts, in batches.

Letters: `B` texts of a batch, `T` segment, `M` memory, `D` hidden size, `P`
tokens of one text.
"""

import numpy as np
import tensorflow as tf

from txl_keras.models.segment_reader import SegmentReader
from txl_keras.models.segment_reader import compile_segments
from txl_keras.models.segment_reader import padded_segment


class TextScorer:
    """Reads texts of different lengths, in batches of `B`."""

    # Each text is read independently of the others, in segments, with memory
    # carried from one to the next. So time and space per token are bounded.

    def __init__(self, model, batch_size, segment_length, memory_length):
        model.backbone.check_takes_padding()
        self._batch_size = batch_size
        self._segment_length = segment_length
        self._reader = SegmentReader(
            model.backbone, batch_size, segment_length, memory_length
        )
        self.nll, self.hidden = (
            compile_segments(self._reader, model, answer)
            for answer in (model.softmax, lambda x: tf.cast(x, tf.float32))
        )

    def read(self, read, texts):
        """Applies `nll` or `hidden` to tuples of ids `(n,)`, text by text."""
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
