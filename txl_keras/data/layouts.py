"""Layouts: the token positions that each batch row reads in each step.

Layouts compute positions only. `Segments` chooses a layout and reads the tokens
at the positions it returns. A layout has `steps_per_epoch`, the same in every
epoch, and `length`, the largest number of inputs of a row in one step.

Letters: `B` is the batch size, `T` the tokens of a segment, `P` the predictions
of the stream (prediction p reads token p, its target is token p + 1), `S` the
number of segments.
"""

import functools
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Holds what each of the B rows reads in one step, arrays `(B,)`."""

    starts: np.ndarray  # int64, position of the first input in the stream
    # int64, number of inputs, at most T; 0 for an idle row. One more token is
    # read, the last target.
    counts: np.ndarray
    scored: np.ndarray  # boolean, False where tokens only fill the memory
    reset: np.ndarray  # boolean, True where memory is reset before the step


class Stream:
    """Assigns predictions `[r P // B, (r + 1) P // B)` to row r, T per step."""

    # With `documents`, they are concatenated in a new random order in every
    # epoch. Memory is carried from one to the next, as the original code does
    # for the sentences of the One Billion Word corpus.
    #
    # If a row `rolls`, it begins at a random offset below T and at a random
    # segment, and after its last segment continues at its first one with memory
    # reset. No token is an input twice in an epoch. Fewer than 2 T tokens at
    # the ends of a row are left out, and they differ between epochs.

    def __init__(
        self,
        num_tokens,
        batch_size,
        segment_length,
        seed=0,
        rolls=False,
        documents=None,
    ):
        spare = segment_length - 1 if rolls else 0  # the largest offset
        needed = batch_size * (segment_length + spare) + 1
        _check_enough(num_tokens, "tokens", needed, batch_size, segment_length)
        self.length = segment_length
        self._begins = _split(num_tokens - 1, batch_size)[:-1]
        row_length = (num_tokens - 1) // batch_size  # of the shortest row
        self.steps_per_epoch = (row_length - spare) // segment_length
        self._seed = seed
        self._rolls = rolls
        self._documents = documents
        if documents is not None:
            sizes = document_lengths(documents, num_tokens)
            self._order = concatenated(sizes, seed)

    def rows(self, epoch, step):
        """Returns the `Rows` of a step, counted from 0 within its epoch."""
        starts, segment = self._begins, step
        if self._rolls:
            number = self.steps_per_epoch
            drawn = draw(self._seed, epoch, np.arange(len(starts)))
            drawn = drawn % np.uint64(self.length * number)
            offset, first = np.divmod(drawn.astype(np.int64), number)
            starts = starts + offset
            segment = (first + step) % number
        scored = np.full(len(starts), True)
        return Rows(
            starts + segment * self.length,
            np.full_like(starts, self.length),
            scored,
            scored & ((segment == 0) | (step == 0)),
        )

    def spans(self, epoch, start, stop):
        """Returns the token ranges of `[start, stop)` of the stream."""
        if self._documents is None:
            return [(start, stop)]
        order, offsets = self._order(epoch)
        first = np.searchsorted(offsets, start, "right") - 1
        last = np.searchsorted(offsets, stop, "left")
        shift = self._documents[order[first:last]] - offsets[first:last]
        starts = np.maximum(offsets[first:last], start) + shift
        stops = np.minimum(offsets[first + 1 : last + 1], stop) + shift
        return list(zip(starts.tolist(), stops.tolist(), strict=True))


class WholeSegments:
    """Assigns segments `[r S // B, (r + 1) S // B)` of documents to row r."""

    # Each document is divided into segments of T, the last one maybe shorter;
    # with a `seed`, in a new order of documents in every epoch. The content of
    # a segment does not depend on B, only the row that reads it does. A row
    # first reads `warmup_segments` before its own to fill its memory, without
    # scoring their targets; if it has fewer, it is idle in the first steps. An
    # epoch ends when the shortest row has no segment left (`drop_remainder`),
    # or when all segments were read:
    #
    # S = 5, B = 2, 1 for warm-up    step 0   step 1   step 2   step 3
    # row 0                          .        0        1        .
    # row 1                          (1)      2        3        4

    def __init__(
        self,
        documents,
        num_tokens,
        batch_size,
        segment_length,
        drop_remainder,
        warmup_segments=0,
        seed=None,
    ):
        self.length = segment_length
        self._documents = documents
        self._document_lengths = document_lengths(documents, num_tokens)
        # A document of n tokens has n - 1 predictions; one token has none.
        sizes = -(-(self._document_lengths - 1) // segment_length)
        self._order = concatenated(sizes, seed)
        self.num_segments = int(sizes.sum(dtype=np.int64))
        needed = batch_size if drop_remainder else 1
        _check_enough(
            self.num_segments, "segments", needed, batch_size, segment_length
        )
        bounds = _split(self.num_segments, batch_size)
        self._first, self._last = bounds[:-1], bounds[1:]
        # The last row has the most segments before its own.
        self._warmup = min(warmup_segments, int(self._first[-1]))
        self._begin = np.maximum(self._first - self._warmup, 0)
        spare = 0 if drop_remainder else batch_size - 1
        longest = (self.num_segments + spare) // batch_size
        self.steps_per_epoch = self._warmup + longest

    def rows(self, epoch, step):
        """Returns the `Rows` of a step, counted from 0 within its epoch."""
        segment = self._first - self._warmup + step
        is_read = (segment >= self._begin) & (segment < self._last)
        order, offsets = self._order(epoch)
        index = np.clip(segment, 0, self.num_segments - 1)
        place = np.searchsorted(offsets, index, "right") - 1
        document = order[place]
        done = (index - offsets[place]) * self.length
        left = self._document_lengths[document] - 1 - done
        return Rows(
            self._documents[document] + done,
            np.where(is_read, np.minimum(self.length, left), 0),
            segment >= self._first,
            is_read & ((done == 0) | (segment == self._begin)),
        )

    def spans(self, epoch, start, stop):
        return [(start, stop)]


def concatenated(sizes, seed=None):
    """Returns a function from an epoch to an order `(D,)`, and offsets."""

    # Two epochs, because prefetching reads past the end of an epoch.
    @functools.lru_cache(maxsize=2)
    def of_epoch(epoch):
        count = len(sizes)
        if seed is None:
            order = np.arange(count)
        else:
            order = permutation(count, seed, epoch)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(sizes[order], out=offsets[1:])
        return order, offsets

    return of_epoch if seed is not None else lambda epoch: of_epoch(0)


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
    """Returns 64 random bits per key, independent of library versions.

    Applies SplitMix64 (Steele, Lea and Flood, 2014) once for each key.

    >>> hex(draw(0))
    '0xe220a8397b1dcdaf'
    """
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


def _check_enough(available, unit, needed, batch_size, segment_length):
    if available < needed:
        raise ValueError(
            f"The text has {available} {unit}, and {needed} are needed for one "
            "step. Use a longer text, or lower --batch_size or "
            f"--segment_length. Received: batch_size={batch_size}, "
            f"segment_length={segment_length}"
        )
