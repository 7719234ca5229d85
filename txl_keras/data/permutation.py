"""Batches of permutation language modelling.

Letters: `B` rows of a batch, `T` tokens of a segment, `P` targets of a row, `K`
tokens that one is predicted of.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.data.layouts import draw
from txl_keras.data.step_batches import StepBatches


class PermutedSegments(StepBatches):
    """Segments with the order in which tokens of them are predicted.

    One of K tokens is a target (partial prediction, section 2.3 of Yang et
    al., 2019). Targets are spans (section 3.1): a length n of at most
    `max_span` is drawn with a probability as `1 / n`, as the original code
    does, then n tokens in a row are chosen among `n K`; and so on to the end
    of the segment. So a segment has `P = T // K` targets, whatever is drawn.
    (The last span may be cut short, and spans may meet.)

    Then an order of the targets is drawn. All other tokens come before them:

        a token that is no target    is seen by all
        a target                     is seen by the targets after it

    For 7 tokens, K = 3, with the spans "b c" drawn, c before b; in a batch,
    the rows of `permutation_mask`, where a model puts the diagonal itself:

               a  b  c  d  e  f  g
        a      1  0  0  1  1  1  1
        b      1  0  1  1  1  1  1     b is predicted from all
        c      1  0  0  1  1  1  1     c is predicted from all but b
        d      1  0  0  1  1  1  1     and so on

    All that is drawn is a function of the seed, the step and the number of
    the row: epochs differ, and steps of the same number do not.

    Args:
        segments: `Segments`, without `varlen`, `half_loss` and
            `warmup_segments`. Their order, resets of memory and padding hold
            here too. (The last token of a text, which is no input of theirs,
            is left out.)
        context_factor: Integer K.
        max_span: Integer, the longest span.
        not_predicted: Optional integers, ids that are never targets, such as
            those of `[CLS]` and `[SEP]`. A row that has such in its spans has
            fewer targets. All see them.
        with_next: Boolean. False: a batch is a batch of `segments`, and all of
            it is remembered. True, as in the original code: it is two of
            them, a segment and the next, side by side, each with an order of
            its own and the first before the second. It reads on by one: of
            the two the first is remembered, and the second comes again, as
            the first of the next batch. The model needs a `reuse_length` that
            is `PermutedSegments.reuse_length`.
        seed: Integer, of all that is drawn.

    A batch is a dict of:
        inputs: `(B, T)` int32.
        permutation_mask: `(B, T, T)` bool, true where token i may see token j.
            Nothing sees padding.
        target_mapping: `(B, P, T)` float32, one-hot: where targets stand, in
            the order of the text; zeros where there is none.
        targets: `(B, P)` int32, the tokens there.
        weights: `(B, P)` float32, 1, or 0 where there is no target.
        reset: `(B,)` bool, true where memory must be forgotten.
        num_targets: float32, the sum of the weights of all B rows, whichever
            rows were asked for.

    Attributes:
        segment_length: Integer T: that of `segments`, or twice it.
        num_targets: Integer P.
        reuse_length: Optional integer, how many tokens from the start of a
            segment are to be remembered; None for all.

    Raises:
        ValueError: If segments are shorter than K, have what is not supported
            or, with `with_next`, another order than that of the text; or a
            number is out of its range.

    Example:

    >>> from txl_keras.data import Segments
    >>> text = np.frombuffer(b"what is not seen is said", "uint8")
    >>> segments = Segments(text, 1, 20, drop_remainder=True)
    >>> permuted = PermutedSegments(segments, context_factor=4)
    >>> batch = permuted.batch(0)
    >>> batch["target_mapping"][0].argmax(axis=-1).tolist()  # three spans
    [1, 2, 3, 13, 17]
    >>> bytes(batch["targets"][0].astype("uint8"))
    b'hatei'
    >>> batch["permutation_mask"].shape
    (1, 20, 20)

    Reference:
        [Yang et al., 2019](https://arxiv.org/abs/1906.08237), sections 2.2,
        2.3 and 3.1; `data_utils.py` of its code for `with_next`.
    """

    def __init__(
        self,
        segments,
        context_factor=6,
        max_span=5,
        not_predicted=(),
        with_next=False,
        seed=0,
    ):
        self.segments = segments
        self.context_factor = check_integer("context_factor", context_factor, 1)
        self.max_span = check_integer("max_span", max_span, 1)
        self.not_predicted = tuple(
            check_integer("not_predicted", token, 0) for token in not_predicted
        )
        self.with_next = with_next
        self.seed = check_integer("seed", seed, 0)
        _check_segments(segments, context_factor, with_next)
        self._num_parts = 2 if with_next else 1
        self._part_targets = segments.segment_length // context_factor
        self.batch_size = segments.batch_size
        self.segment_length = self._num_parts * segments.segment_length
        self.num_targets = self._num_parts * self._part_targets
        self.reuse_length = segments.segment_length if with_next else None

    @property
    def steps_per_epoch(self):
        """Steps until the rows begin anew."""
        return len(self.segments) + 1 - self._num_parts

    def batch(self, step, first_row=0, num_rows=None):
        """Computes the batch of a step, or some of its rows.

        Args:
            step: Integer, 0 or more. Steps beyond an epoch begin it again,
                with other targets.
            first_row: Integer.
            num_rows: Optional integer. Defaults to all rows from `first_row`.

        Returns:
            Dict of arrays with the keys and dtypes listed at the class, for
            the rows from `first_row` on.

        Raises:
            ValueError: If the step is negative or a row is not in the batch.
        """
        step = check_integer("step", step, 0)
        num_rows = self._check_rows(first_row, num_rows)
        # All rows, as `num_targets` counts the targets of all.
        inputs, is_read, reset = self._read(step)
        places = self._target_places(step)  # [B, P]
        rows = np.arange(self.batch_size)[:, None]
        targets = inputs[rows, places]
        is_target = is_read[rows, places]
        is_target &= ~np.isin(targets, self.not_predicted)
        num_targets = is_target.sum()
        inputs, is_read, reset, places, rows, targets, is_target = (
            array[first_row : first_row + num_rows]
            for array in (
                inputs, is_read, reset, places, rows, targets, is_target
            )
        )  # fmt: skip
        mapping = np.arange(self.segment_length) == places[..., None]
        mapping &= is_target[..., None]  # [B, P, T]
        return {
            "inputs": inputs,
            "permutation_mask": self._sees(step, rows, mapping, is_read),
            "target_mapping": mapping.astype(np.float32),
            "targets": np.where(is_target, targets, 0),
            "weights": is_target.astype(np.float32),
            "reset": reset,
            "num_targets": np.float32(num_targets),
        }

    def _read(self, step):
        """Tokens `(B, T)`, whether they are no padding, and resets `(B,)`."""
        epoch, step = divmod(step, self.steps_per_epoch)
        first = epoch * len(self.segments) + step
        parts = [self.segments.batch(first + i) for i in range(self._num_parts)]
        inputs, weights = (
            np.concatenate([part[key] for part in parts], axis=1)
            for key in ("inputs", "weights")
        )
        return inputs, weights > 0, parts[0]["reset"]

    def _target_places(self, step):
        """Where the spans of all rows are, `(B, P)`, from left to right."""
        length = self.segments.segment_length
        places = [
            length * part + self._places_of_part(step, part)
            for part in range(self._num_parts)
        ]
        return np.concatenate(places, axis=1)

    def _places_of_part(self, step, part):
        num_targets, factor = self._part_targets, self.context_factor
        spans = np.arange(num_targets)
        rows = np.arange(self.batch_size)[:, None]

        def drawn(what, index):
            return draw(self.seed, step, rows, part, what, index)

        # Spans i of [starts[i], ends[i]) targets, empty once there are P.
        sizes = _draw_sizes(drawn(_SIZE, spans), self.max_span)
        ends = np.minimum(np.cumsum(sizes, axis=1), num_targets)  # [B, P]
        starts = np.concatenate([np.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        sizes = ends - starts
        # What the windows leave of the segment comes before and after them.
        spare = self.segments.segment_length - num_targets * factor
        first = drawn(_OFFSET, 0) % np.uint64(spare + 1)
        free = sizes * (factor - 1)
        offsets = drawn(_PLACE, spans) % (free + 1).astype(np.uint64)
        begins = starts * factor + first.astype(int) + offsets.astype(int)
        # Target u is the (u - start)-th of the span it is in.
        span = (ends[:, None, :] <= spans[:, None]).sum(axis=-1)  # [B, P]
        inside = spans - np.take_along_axis(starts, span, axis=1)
        return np.take_along_axis(begins, span, axis=1) + inside

    def _sees(self, step, rows, mapping, is_read):
        """The permutation mask, `(B, T, T)`."""
        index = np.arange(self.segment_length)
        part = index // self.segments.segment_length
        # When a token gets known: at 0, or a target at a moment of its own.
        moments = draw(self.seed, step, rows, _MOMENT, index) | np.uint64(1)
        moments = np.where(mapping.any(axis=1), moments, np.uint64(0))
        sees = (moments[:, :, None] > moments[:, None]) | (
            moments[:, None] == 0
        )
        sees &= part[:, None] == part
        sees |= part[:, None] > part
        return sees & is_read[:, None]

    def _signature(self, num_rows):
        length, targets = self.segment_length, self.num_targets
        return {
            "inputs": tf.TensorSpec((num_rows, length), tf.int32),
            "permutation_mask": tf.TensorSpec(
                (num_rows, length, length), tf.bool
            ),
            "target_mapping": tf.TensorSpec(
                (num_rows, targets, length), tf.float32
            ),
            "targets": tf.TensorSpec((num_rows, targets), tf.int32),
            "weights": tf.TensorSpec((num_rows, targets), tf.float32),
            "reset": tf.TensorSpec((num_rows,), tf.bool),
            "num_targets": tf.TensorSpec((), tf.float32),
        }


# What is drawn: streams of numbers of their own.
_SIZE, _OFFSET, _PLACE, _MOMENT = range(4)


def _draw_sizes(drawn, max_span):
    """Lengths n from 1 to `max_span`, with probabilities as `1 / n`."""
    weights = 1 / np.arange(1, max_span + 1)
    bounds = np.cumsum(weights)[:-1] / weights.sum()
    # The highest 53 bits, which a float64 holds.
    uniform = (drawn >> np.uint64(11)) * 2.0**-53
    return 1 + np.searchsorted(bounds, uniform, side="right")


def _check_segments(segments, context_factor, with_next):
    if segments.varlen or segments.warmup_segments or segments.half_loss:
        raise ValueError(
            "`segments` must be of one length and all be scored. Received: "
            f"varlen={segments.varlen}, half_loss={segments.half_loss}, "
            f"warmup_segments={segments.warmup_segments}"
        )
    if segments.segment_length < context_factor:
        raise ValueError(
            "`segments` must be at least `context_factor` tokens long, or "
            "they have no target. Received: segment_length="
            f"{segments.segment_length}, context_factor={context_factor}"
        )
    is_plain = segments.order == "sequential" and not segments.reset_documents
    if with_next and not (is_plain and len(segments) > 1):
        raise ValueError(
            "`with_next` needs segments that go on with each other: "
            "order='sequential', without reset_documents, two a row or more. "
            f"Received: order={segments.order!r}, "
            f"reset_documents={segments.reset_documents}, "
            f"{len(segments)} a row"
        )
