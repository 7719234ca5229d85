"""`Layout`: the token positions that each batch row reads in each step.

Letters: `B` is the batch size, `T` the tokens of a segment, `D` the number of
texts, `S` the number of their segments, `P` the predictions of a text
(prediction p reads token p, its target is token p + 1).
"""

import functools
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Holds the positions that each of the B rows reads, arrays `(B,)`."""

    starts: np.ndarray  # int64, position of the first input in the stream
    # int64, number of inputs, at most T; 0 for an idle row. One more token is
    # read as the last target.
    counts: np.ndarray
    scored: np.ndarray  # boolean, False where tokens only fill the memory
    reset: np.ndarray  # boolean, True where memory is reset before the step


class Layout:
    """Assigns the S segments of D texts to rows: `S / B` in order to each."""

    # A text is a document, or everything that a row reads. Text d has
    # `sizes[d]` predictions from `starts[d]` on, in segments of T; its last
    # segment may be shorter. Memory is reset where a text begins. The content
    # of a segment does not depend on B, only the row that reads it does.
    #
    # A row first reads `warmup_segments` before its own to fill its memory,
    # without scoring their targets. If it has fewer, it is idle in the first
    # steps. An epoch ends when the shortest row has no segment left
    # (`drop_remainder`), or when all segments are read:
    #
    # S = 5, B = 2, 1 for warm-up    step 0   step 1   step 2   step 3
    # row 0                          .        0        1        .
    # row 1                          (1)      2        3        4
    #
    # With order "shuffle", each epoch has a new order of texts. With order
    # "roll", a row begins at a random offset below T and at a random segment,
    # and continues at its first segment after its last one.

    def __init__(
        self,
        starts,
        sizes,
        batch_size,
        segment_length,
        drop_remainder,
        warmup_segments=0,
        order="sequential",
        seed=0,
    ):
        self.length = segment_length
        self._starts, self._sizes = starts, sizes
        numbers = -(-sizes // segment_length)
        self._order = concatenated(
            numbers, seed if order == "shuffle" else None
        )
        self._seed = seed if order == "roll" else None
        self.num_segments = int(numbers.sum(dtype=np.int64))
        needed = batch_size if drop_remainder else 1
        check_enough(
            self.num_segments, "segments", needed, batch_size, segment_length
        )
        bounds = _split(self.num_segments, batch_size)
        self._first, self._last = bounds[:-1], bounds[1:]
        # The last row has the most segments before its own.
        self._warmup = min(warmup_segments, int(self._first[-1]))
        self._begin = np.maximum(self._first - self._warmup, 0)
        spare = 0 if drop_remainder else batch_size - 1
        longest = (self.num_segments + spare) // batch_size
        self.steps_per_epoch = self._warmup + longest  # of every epoch

    def rows(self, epoch, step):
        """Returns the `Rows` of a step, counted from 0 within its epoch."""
        segment = self._first - self._warmup + step
        is_read = (segment >= self._begin) & (segment < self._last)
        index, offset = np.clip(segment, 0, self.num_segments - 1), 0
        if self._seed is not None:
            number = self.steps_per_epoch
            drawn = draw(self._seed, epoch, np.arange(len(index)))
            drawn = drawn % np.uint64(self.length * number)
            offset, turn = np.divmod(drawn.astype(np.int64), number)
            index = self._first + (turn + step) % number
        order, offsets = self._order(epoch)
        place = np.searchsorted(offsets, index, "right") - 1
        text = order[place]
        done = (index - offsets[place]) * self.length
        left = self._sizes[text] - done
        return Rows(
            self._starts[text] + offset + done,
            np.where(is_read, np.minimum(self.length, left), 0),
            segment >= self._first,
            is_read & ((done == 0) | (segment == self._begin)),
        )


def equal_texts(num_tokens, batch_size, segment_length, spare=0):
    """Divides a stream into one text per row: returns `starts` and `sizes`."""
    # All texts have the length of the shortest row in whole segments. The rest
    # and `spare` more tokens are left out.
    needed = batch_size * (segment_length + spare) + 1
    check_enough(num_tokens, "tokens", needed, batch_size, segment_length)
    starts = _split(num_tokens - 1, batch_size)[:-1]
    size = (num_tokens - 1) // batch_size - spare
    size -= size % segment_length
    return starts, np.full(batch_size, size)


def concatenated(sizes, seed=None):
    """Returns a function from an epoch to an order `(D,)`, and offsets."""

    # Two epochs, because prefetching reads past the end of an epoch.
    @functools.lru_cache(maxsize=2)
    def of_epoch(epoch):
        order = np.arange(len(sizes))
        if seed is not None:
            order = permutation(len(sizes), seed, epoch)
        return order, np.append(0, np.cumsum(sizes[order], dtype=np.int64))

    return of_epoch


def document_lengths(documents, num_tokens):
    """Returns the tokens per document, `(D,)`; checks the positions."""
    lengths = np.diff(documents, append=num_tokens)
    if not len(lengths) or documents[0] != 0 or lengths.min() < 1:
        raise ValueError(
            "`documents` must be the positions where documents begin: starting "
            "at 0, strictly ascending, and less than the number of tokens, "
            f"{num_tokens}. Received: {len(documents)} documents, the first at "
            f"{documents[:1]}, the last at {documents[-1:]}, the shortest with "
            f"{lengths.min(initial=0)} tokens"
        )
    return lengths


def permutation(size, seed, epoch):
    """Returns a random permutation that does not depend on library versions."""
    return np.argsort(draw(seed, epoch, np.arange(size)), kind="stable")


def draw(*keys):
    """Returns 64 random bits per key, the same with every library version."""
    # Applies SplitMix64 (Steele, Lea and Flood, 2014) once for each key.
    state = np.uint64(0)
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64
        for key in keys:
            state = state + np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
            state = (state ^ (state >> np.uint64(30))) * _MULTIPLIERS[0]
            state = (state ^ (state >> np.uint64(27))) * _MULTIPLIERS[1]
            state = state ^ (state >> np.uint64(31))
    return state


_MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def _split(size, parts):
    """Returns the `parts + 1` boundaries of parts of about equal size."""
    return np.arange(parts + 1, dtype=np.int64) * size // parts


def check_enough(available, unit, needed, batch_size, segment_length):
    if available < needed:
        raise ValueError(
            f"The text has {available} {unit}, and {needed} are needed for one "
            "step. Use a longer text, or lower --batch_size or "
            f"--segment_length. Received: batch_size={batch_size}, "
            f"segment_length={segment_length}"
        )
