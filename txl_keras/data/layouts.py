"""Which tokens every row of a batch reads, in every step of every epoch.

Arithmetic of positions: no token is read here. `Segments` chooses a layout and
reads what it names.

Letters: `B` rows of a batch, `T` tokens of a segment, `P` predictions of the
stream (prediction p reads token p, its target is token p + 1), `S` segments.
"""

import functools
import statistics
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """What the B rows read in one step: arrays of shape `(B,)`.

    Attributes:
        starts: int64, position of the first input in the stream.
        counts: int64, number of inputs, at most T; 0 where a row idles. One
            token more is read: the last target.
        scored: Boolean, False where tokens are read to fill memory only.
        reset: Boolean, True where memory must be forgotten first.
    """

    starts: np.ndarray
    counts: np.ndarray
    scored: np.ndarray
    reset: np.ndarray


class Layout:
    """What all layouts have.

    Attributes:
        steps_per_epoch: Integer, the same in every epoch.
        lengths: Tuple of integers, the lengths of segments that come up,
            ascending.
    """

    def rows(self, epoch, step):
        """What is read in a step.

        Args:
            epoch: Integer.
            step: Integer in `[0, steps_per_epoch)`, within the epoch.

        Returns:
            `Rows`.
        """
        raise NotImplementedError

    def spans(self, epoch, start, stop):
        """Where a stretch of the epoch's stream is among the tokens.

        Args:
            epoch: Integer.
            start: Integer, position in the stream.
            stop: Integer, the position after the last.

        Returns:
            List of pairs `(start, stop)` of token positions. The stream is
            the tokens as they are, unless a layout says otherwise.
        """
        return [(start, stop)]


class Sequential(Layout):
    """Row r takes the predictions `[r P // B, (r + 1) P // B)`, T a step.

    An epoch ends when the shortest row has no complete segment left.

    Args:
        num_tokens: Integer, P + 1.
        batch_size: Integer B.
        segment_length: Integer T.

    Raises:
        ValueError: If there are too few tokens for a step.

    Example:

    >>> layout = Sequential(23, batch_size=2, segment_length=4)
    >>> layout.steps_per_epoch
    2
    >>> layout.rows(epoch=0, step=1).starts.tolist()
    [4, 15]
    """

    def __init__(self, num_tokens, batch_size, segment_length):
        needed = batch_size * self._shortest_row(segment_length) + 1
        _check_enough(num_tokens, "tokens", needed, batch_size, segment_length)
        self.lengths = (segment_length,)
        self._bounds = _split(num_tokens - 1, batch_size)
        self._row_length = (num_tokens - 1) // batch_size  # of the shortest
        self._all = np.full(batch_size, True)
        self.steps_per_epoch = self._row_length // segment_length

    @staticmethod
    def _shortest_row(segment_length):
        """Predictions that a row must have for one step."""
        return segment_length

    def rows(self, epoch, step):
        (length,) = self.lengths
        starts = self._bounds[:-1] + step * length
        return self._rows(starts, length, np.full_like(self._all, step == 0))

    def _rows(self, starts, length, reset):
        counts = np.full_like(starts, length)
        return Rows(starts, counts, self._all, reset)


class Roll(Sequential):
    """Every row begins elsewhere in each epoch, and goes around.

    An offset of less than T is drawn for each row, so that segments end at
    other tokens in every epoch, and the segment that is read first. After the
    last segment of a row comes its first one, with memory forgotten. No token
    is an input twice in an epoch; the fewer than 2 T at the ends of a row that
    no segment covers are others in the next.

    Args:
        num_tokens, batch_size, segment_length: See `Sequential`.
        seed: Integer.

    Example:

    >>> layout = Roll(25, batch_size=1, segment_length=4, seed=3)
    >>> [int(layout.rows(0, step).starts[0]) for step in range(5)]
    [9, 13, 17, 1, 5]
    >>> [bool(layout.rows(0, step).reset[0]) for step in range(5)]
    [True, False, False, True, False]
    """

    def __init__(self, num_tokens, batch_size, segment_length, seed):
        super().__init__(num_tokens, batch_size, segment_length)
        self._seed = seed
        spare = segment_length - 1  # room for any offset
        self.steps_per_epoch = (self._row_length - spare) // segment_length

    @staticmethod
    def _shortest_row(segment_length):
        return 2 * segment_length - 1

    def rows(self, epoch, step):
        (length,) = self.lengths
        drawn = draw(self._seed, epoch, np.arange(len(self._all)))
        drawn = drawn % np.uint64(length * self.steps_per_epoch)
        offset, first = np.divmod(drawn.astype(np.int64), self.steps_per_epoch)
        segment = (first + step) % self.steps_per_epoch
        starts = self._bounds[:-1] + offset + segment * length
        return self._rows(starts, length, (segment == 0) | (step == 0))


class VaryingLength(Sequential):
    """Segments of varying length, so that they end anywhere.

    The original code draws the length of each step: a normal of deviation 5
    around T, or with probability 0.05 around T / 2. XLA compiles a program
    for every length, so there are six here: T / 2, and T + 0, 4 or 8 more or
    less. Of 20 steps in a row one has T / 2 and the 19 others are the quantiles
    of the normal, rounded; only their order is drawn, anew in every epoch. So
    where a step begins is known without the lengths of all steps before it.

    Args:
        num_tokens, batch_size, segment_length: See `Sequential`.
        seed: Integer.

    Example:

    >>> layout = VaryingLength(9_000, batch_size=2, segment_length=32, seed=0)
    >>> layout.lengths
    (16, 24, 28, 32, 36, 40)
    >>> [int(layout.rows(0, step).counts[0]) for step in range(8)]
    [40, 36, 24, 32, 32, 28, 32, 16]
    """

    _SHORTEST = 5
    _DEVIATION = 5
    _ROUNDED_TO = 4
    _NUM_NORMAL = 19  # and one of half the length: a cycle of 20 steps

    def __init__(self, num_tokens, batch_size, segment_length, seed):
        super().__init__(num_tokens, batch_size, segment_length)
        self._seed = seed
        self._cycle = self._lengths_of_a_cycle(segment_length)
        self.lengths = tuple(sorted(set(self._cycle.tolist())))
        cycles, rest = divmod(self._row_length, int(self._cycle.sum()))
        self.steps_per_epoch = (
            cycles * len(self._cycle) + rest // self.lengths[-1]
        )

    @classmethod
    def _shortest_row(cls, segment_length):
        return int(cls._lengths_of_a_cycle(segment_length).max())

    @classmethod
    def _lengths_of_a_cycle(cls, segment_length):
        normal = statistics.NormalDist(0, cls._DEVIATION / cls._ROUNDED_TO)
        middles = (np.arange(cls._NUM_NORMAL) + 0.5) / cls._NUM_NORMAL
        rounded = np.round([normal.inv_cdf(share) for share in middles])
        lengths = segment_length + cls._ROUNDED_TO * rounded.astype(int)
        lengths = np.append(lengths, segment_length // 2)
        return np.maximum(lengths, cls._SHORTEST)

    def rows(self, epoch, step):
        cycle, step_of_cycle = divmod(step, len(self._cycle))
        drawn = draw(self._seed, epoch, cycle, np.arange(len(self._cycle)))
        lengths = self._cycle[np.argsort(drawn)]
        done = cycle * self._cycle.sum() + lengths[:step_of_cycle].sum()
        reset = np.full_like(self._all, step == 0)
        starts = self._bounds[:-1] + done
        return self._rows(starts, lengths[step_of_cycle], reset)


class Shuffle(Sequential):
    """Documents in a new order in every epoch, one after the other.

    Rows read the documents so ordered as `Sequential` reads the text. Memory
    goes on from one document to the next, as in the original code for the
    sentences of the One Billion Word corpus.

    Args:
        documents: Integer array of shape `(D,)`, where documents begin.
        num_tokens, batch_size, segment_length: See `Sequential`.
        seed: Integer.

    Example:

    >>> documents = np.array([0, 10, 14])
    >>> layout = Shuffle(documents, 24, batch_size=1, segment_length=8, seed=1)
    >>> layout.spans(0, 0, 24)
    [(14, 24), (10, 14), (0, 10)]
    >>> layout.spans(1, 0, 24)
    [(10, 14), (14, 24), (0, 10)]
    """

    def __init__(self, documents, num_tokens, batch_size, segment_length, seed):
        super().__init__(num_tokens, batch_size, segment_length)
        self._documents = documents
        self._order = Order(document_lengths(documents, num_tokens), seed)

    def spans(self, epoch, start, stop):
        order, begins = self._order.of_epoch(epoch)
        first = np.searchsorted(begins, start, "right") - 1
        last = np.searchsorted(begins, stop, "left")
        shift = self._documents[order[first:last]] - begins[first:last]
        starts = np.maximum(begins[first:last], start) + shift
        stops = np.minimum(begins[first + 1 : last + 1], stop) + shift
        return list(zip(starts.tolist(), stops.tolist(), strict=True))


class WholeSegments(Layout):
    """Row r takes the segments `[r S // B, (r + 1) S // B)` of a list.

    What a segment is does not depend on B: only in which row it is read does.
    With `warmup_segments` a row first reads as many segments before its own,
    to fill its memory, and none of their targets is scored. Where there are
    fewer, it idles first.

    ```
    S = 5, B = 2, 1 for warm-up    step 0   step 1   step 2   step 3
    row 0                          .        0        1        .
    row 1                          (1)      2        3        4
    ```

    Args:
        segments: `TextSegments` or `DocumentSegments`.
        batch_size: Integer B.
        drop_remainder: Boolean. True: an epoch ends when the shortest row has
            no segment left. False: when all were read.
        warmup_segments: Integer.

    Raises:
        ValueError: If there are too few segments for a step.

    Example:

    >>> layout = WholeSegments(TextSegments(20, 4), 2, False, 1)
    >>> layout.steps_per_epoch
    4
    >>> [layout.rows(0, step).starts.tolist() for step in (0, 1)]
    [[0, 4], [0, 8]]
    >>> [layout.rows(0, step).scored.tolist() for step in (0, 1)]
    [[False, False], [True, True]]
    """

    def __init__(self, segments, batch_size, drop_remainder, warmup_segments=0):
        num_segments = segments.num_segments
        needed = batch_size if drop_remainder else 1
        _check_enough(
            num_segments, "segments", needed, batch_size, segments.length
        )
        self.lengths = (segments.length,)
        self._segments = segments
        bounds = _split(num_segments, batch_size)
        self._first, self._last = bounds[:-1], bounds[1:]
        # No row has more segments before its own than the last one.
        self._warmup = min(warmup_segments, int(self._first[-1]))
        self._begin = np.maximum(self._first - self._warmup, 0)
        shortest, more = divmod(num_segments, batch_size)
        longest = shortest + (more > 0)
        self.steps_per_epoch = self._warmup + (
            shortest if drop_remainder else longest
        )

    def rows(self, epoch, step):
        segment = self._first - self._warmup + step
        is_read = (segment >= self._begin) & (segment < self._last)
        at = np.clip(segment, 0, self._segments.num_segments - 1)
        starts, counts, begins = self._segments.locate(epoch, at)
        return Rows(
            starts,
            np.where(is_read, counts, 0),
            segment >= self._first,
            is_read & (begins | (segment == self._begin)),
        )


class TextSegments:
    """A text as segments of T, the last one perhaps shorter.

    Args:
        num_tokens: Integer, P + 1.
        segment_length: Integer T.
    """

    def __init__(self, num_tokens, segment_length):
        self._num_predictions = num_tokens - 1
        self.length = segment_length
        self.num_segments = -(-self._num_predictions // segment_length)

    def locate(self, epoch, segments):
        """Where segments are.

        Args:
            epoch: Integer.
            segments: Integer array, segments in the order of the epoch.

        Returns:
            Arrays of the same shape: where each segment starts, how many
            inputs it has, and whether it begins a document.
        """
        starts = segments * self.length
        counts = np.minimum(self.length, self._num_predictions - starts)
        return starts, counts, segments == 0


class DocumentSegments:
    """Documents as segments of T: each begins one, and its last is shorter.

    So the first token of a document is never a target.

    Args:
        documents: Integer array of shape `(D,)`, where documents begin.
        num_tokens: Integer.
        segment_length: Integer T.
        seed: Optional integer, of the order of the documents, another one in
            each epoch. None is the order of the text.
    """

    def __init__(self, documents, num_tokens, segment_length, seed=None):
        self.length = segment_length
        self._documents = documents
        self._document_lengths = document_lengths(documents, num_tokens)
        # Predictions are one fewer than tokens: a token alone has no segment.
        sizes = -(-(self._document_lengths - 1) // segment_length)
        self._order = Order(sizes, seed)
        self.num_segments = int(sizes.sum(dtype=np.int64))

    def locate(self, epoch, segments):
        """Where segments are: see `TextSegments.locate`."""
        order, begins = self._order.of_epoch(epoch)
        place = np.searchsorted(begins, segments, "right") - 1
        document = order[place]
        done = (segments - begins[place]) * self.length
        left = self._document_lengths[document] - 1 - done
        starts = self._documents[document] + done
        return starts, np.minimum(self.length, left), done == 0


class Order:
    """Things of given sizes, one after the other in the order of an epoch.

    Args:
        sizes: Integer array of shape `(D,)`.
        seed: Optional integer, of an order for each epoch. None is the order
            they are in.
    """

    def __init__(self, sizes, seed=None):
        self._sizes = sizes
        self._seed = seed
        # Two epochs: data is read ahead over the end of one.
        self._cached = functools.lru_cache(maxsize=2)(self._compute)

    def of_epoch(self, epoch):
        """The order in an epoch.

        Args:
            epoch: Integer.

        Returns:
            The pair `(order, begins)`: which thing is at each place, `(D,)`,
            and where the places begin and the last one ends, `(D + 1,)`.
        """
        return self._cached(0 if self._seed is None else epoch)

    def _compute(self, epoch):
        count = len(self._sizes)
        if self._seed is None:
            order = np.arange(count, dtype=_small_integer(count))
        else:
            order = permutation(count, self._seed, epoch)
        begins = np.zeros(count + 1, np.int64)
        np.cumsum(self._sizes[order], out=begins[1:])
        return order, begins


def document_lengths(documents, num_tokens):
    """Tokens of every document.

    Args:
        documents: Integer array of shape `(D,)`, where documents begin.
        num_tokens: Integer.

    Returns:
        Integer array of shape `(D,)`.

    Raises:
        ValueError: If the documents do not begin at 0, each after the one
            before, and all before the end.
    """
    lengths = np.diff(documents, append=num_tokens)
    if not len(lengths) or documents[0] != 0 or lengths.min() < 1:
        raise ValueError(
            "`documents` must be where documents begin: 0 first, ascending, "
            f"and less than the number of tokens, {num_tokens}. "
            f"Received: {len(documents)} documents, the first at "
            f"{documents[:1]}, the last at {documents[-1:]}, and the shortest "
            f"of {lengths.min(initial=0)} tokens"
        )
    return lengths.astype(_small_integer(lengths.max()))


def permutation(size, seed, epoch):
    """A random order, which no version of any library changes.

    Args:
        size: Integer.
        seed: Integer.
        epoch: Integer.

    Returns:
        Integer array of shape `(size,)`.

    Example:

    >>> permutation(5, seed=0, epoch=0).tolist()
    [4, 0, 1, 2, 3]
    """
    # One array, sorted in place: the number of a thing is in the low bits of
    # what is drawn for it. In pieces, as temporary arrays count for 10**8.
    low = np.uint64((1 << size.bit_length()) - 1)
    keys = np.empty(size, np.uint64)
    for start in range(0, size, 1 << 20):
        numbers = np.arange(start, min(start + (1 << 20), size), dtype="uint64")
        drawn = draw(seed, epoch, numbers)
        keys[start : start + len(numbers)] = (drawn & ~low) | numbers
    keys.sort()
    keys &= low
    return keys.astype(_small_integer(size))


def draw(*keys):
    """Random 64 bits for every key, the same whatever the libraries.

    The SplitMix64 generator of Steele, Lea and Flood, 2014, once for each key.

    Args:
        *keys: Integers and integer arrays, not negative.

    Returns:
        uint64 array of their common shape.

    Example:

    >>> hex(draw(0))
    '0xe220a8397b1dcdaf'
    """
    state = np.uint64(0)
    with np.errstate(over="ignore"):  # modulo 2**64, by design
        for key in keys:
            state = state + np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
            state = (state ^ (state >> np.uint64(30))) * _MULTIPLIERS[0]
            state = (state ^ (state >> np.uint64(27))) * _MULTIPLIERS[1]
            state = state ^ (state >> np.uint64(31))
    return state


_MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def _split(size, parts):
    """Where each of some equal parts begins, and the last one ends."""
    return np.arange(parts + 1, dtype=np.int64) * size // parts


def _small_integer(largest):
    return np.int32 if largest < 2**31 else np.int64


def _check_enough(have, what, needed, batch_size, segment_length):
    if have < needed:
        raise ValueError(
            f"The text has {have} {what}, and {needed} are needed for one "
            "step. Use a longer text, or lower --batch_size or "
            f"--segment_length. Received: batch_size={batch_size}, "
            f"segment_length={segment_length}"
        )
