"""Sliding windows over a text, for models without memory."""

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.data.segments import Segments


class SlidingWindows(Segments):
    """Serves a text as windows of T tokens with a stride of K tokens.

    Al-Rfou et al., 2018, evaluate models without memory in this way. Only the
    last K predictions of each window are scored. They have between T - K + 1
    and T tokens of context.

    ```
    T = 4, K = 2    inputs     targets
    window 0        0 1 . .    1 2
    window 1        0 1 2 3    3 4
    window 2        2 3 4 5    5 6
    ```

    Every token except the first is scored once. Tokens with fewer than T tokens
    before them are scored in a window that begins at the start of the text and
    is padded on the right.

    Args:
        tokens: Integer array of shape `(P + 1,)`, see `Segments`.
        batch_size: Integer B, see `Segments`.
        segment_length: Integer T.
        stride: Integer K.
        documents: Optional integer array, see `Segments`. Used only by
            `reset_documents`.
        reset_documents: Boolean. True: a window never begins before the
            document of its targets.

    A batch is a dict as for `Segments`, except that `targets` and `weights`
    have shape `(B, K)`, with one more entry:
        target_places: `(B, K)` int32, the index of the input (of T) that each
            target follows.

    Example:

    >>> windows = SlidingWindows(np.arange(20), 3, segment_length=4, stride=2)
    >>> batch = windows.batch(1)
    >>> batch["inputs"].tolist()
    [[0, 1, 2, 3], [6, 7, 8, 9], [12, 13, 14, 15]]
    >>> batch["targets"].tolist()
    [[3, 4], [9, 10], [15, 16]]

    Reference:
        [Al-Rfou et al., 2018](https://arxiv.org/abs/1808.04444), section 3.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        batch_size: int,
        segment_length: int,
        stride: int = 1,
        documents: np.ndarray | None = None,
        reset_documents: bool = False,
    ):
        check_integer("segment_length", segment_length, 1)
        check_integer("stride", stride, 1, maximum=segment_length)
        # The targets are the targets of segments of length K.
        super().__init__(
            tokens,
            batch_size,
            stride,
            drop_remainder=False,
            documents=documents,
            reset_documents=reset_documents,
        )
        self.segment_length = segment_length
        self.stride = stride
        begins = documents if reset_documents else [0]
        self._begins = np.asarray(begins, np.int64)

    def _batch(self, step, rows):
        batch = super()._batch(step, rows)
        read = self._layout.rows(0, step % self.steps_per_epoch)
        starts, counts = read.starts[rows], read.counts[rows]
        # Each window ends with the inputs of its targets.
        stops = starts + counts
        begin = np.searchsorted(self._begins, starts, "right") - 1
        windows = np.maximum(stops - self.segment_length, self._begins[begin])
        lengths = np.where(counts, stops - windows, 0)
        tokens = self._read(0, windows, lengths, self.segment_length)
        is_read = np.arange(self.segment_length) < lengths[:, None]
        places = (starts - windows)[:, None] + np.arange(self.stride)
        # Missing targets (of weight 0) would point beyond the window.
        places = np.minimum(places, self.segment_length - 1)
        return {
            **batch,
            "inputs": np.where(is_read, tokens[:, :-1], 0),
            "target_places": places.astype(np.int32),
        }
