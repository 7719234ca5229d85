"""Batches for permutation language modelling."""

from collections.abc import Sequence

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.data.layouts import draw
from txl_keras.data.segments import Segments
from txl_keras.data.segments import check_rules
from txl_keras.data.step_batches import StepBatches


class PermutedSegments(StepBatches):
    """Adds permutation language modelling targets and masks to segments.

    One in K tokens is a target (partial prediction, section 2.3 of Yang et al.,
    2019). Targets come in spans (section 3.1), drawn as in the original code: a
    length n of at most `max_span` is drawn with probability proportional to `1
    / n`, then n consecutive tokens are chosen among the next `n K` tokens, and
    so on to the end of the segment. Every segment thus has `P = T // K`
    targets. (The last span may be cut short, and spans may be adjacent.)

    Then an order of the targets is drawn. All other tokens come before them:

        a token that is not a target    is visible to all tokens
        a target                        is visible to the targets after it

    An example of 7 tokens with K = 3: the spans "b c" were drawn, c before b.
    The rows of `permutation_mask` in the batch are as follows; the model adds
    the diagonal itself:

               a  b  c  d  e  f  g
        a      1  0  0  1  1  1  1
        b      1  0  1  1  1  1  1     b is predicted from all others
        c      1  0  0  1  1  1  1     c is predicted from all others except b
        d      1  0  0  1  1  1  1     and so on

    All random choices depend on the seed, the step and the row only: they
    differ between epochs and are the same whenever a step is repeated.

    Args:
        segments: `Segments` without `half_loss` and `warmup_segments`.
            Their order, memory resets and padding are kept.
            (The last token of a text, which is not among their inputs, is left
            out.)
        context_factor: Integer K.
        max_span: Integer, the longest span.
        not_predicted: Optional integers, ids that are never targets, such as
            those of `[CLS]` and `[SEP]`. A row with such tokens in its spans
            has fewer targets. These tokens are visible to all others.
        with_next: Boolean. False: a batch is one batch of `segments`, and all
            of it is stored in memory. True, as in the original code: each row
            of a batch is a segment followed by the next one, each with its own
            order, the first before the second. Successive batches advance by
            one segment: the first segment is stored in memory, and the second
            one is the first segment of the next batch. Pass
            `PermutedSegments.reuse_length` to the model as its `reuse_length`.
        seed: Integer, the seed of all random choices.

    A batch is a dict of:
        inputs: `(B, T)` int32.
        permutation_mask: `(B, T, T)` bool, True where token i may attend to
            token j. Padding is not visible to any token.
        target_mapping: `(B, P, T)` float32, one-hot positions of the targets,
            in the order of the text; zeros where there is no target.
        targets: `(B, P)` int32, the tokens at these positions.
        weights: `(B, P)` float32, 1, or 0 where there is no target.
        reset: `(B,)` bool, True where memory must be reset before the step.
        num_targets: float32, the sum of the weights of all B rows, even if
            fewer rows were requested.

    Attributes:
        segment_length: Integer T: the segment length of `segments`, or twice
            that with `with_next`.
        num_targets: Integer P.
        reuse_length: Optional integer, how many tokens from the start of a
            segment the model must store in memory; None for all.

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
        [Yang et al., 2019](https://arxiv.org/abs/1906.08237), sections 2.2, 2.3
        and 3.1; `data_utils.py` of its code for `with_next`.
    """

    def __init__(
        self,
        segments: Segments,
        context_factor: int = 6,
        max_span: int = 5,
        not_predicted: Sequence[int] = (),
        with_next: bool = False,
        seed: int = 0,
    ):
        self.segments = segments
        self.context_factor = check_integer("context_factor", context_factor, 1)
        self.max_span = check_integer("max_span", max_span, 1)
        self.not_predicted = tuple(
            check_integer("not_predicted", token, 0) for token in not_predicted
        )
        self.with_next = with_next
        self.seed = check_integer("seed", seed, 0)
        is_plain = segments.order == "sequential"
        is_plain = is_plain and not segments.reset_documents
        rules = {
            "`segments` must all be scored": (
                segments.warmup_segments or segments.half_loss
            ),
            "`segments` must be at least `context_factor` tokens long to have "
            "a target": segments.segment_length < context_factor,
            "`with_next` needs consecutive segments: order='sequential', "
            "without `reset_documents`, at least 2 per row": (
                with_next and not (is_plain and len(segments) > 1)
            ),
        }
        options = {"context_factor": context_factor, "per_row": len(segments)}
        check_rules(segments, rules, **options)
        self._num_parts = 2 if with_next else 1
        self._part_targets = segments.segment_length // context_factor
        self.batch_size = segments.batch_size
        self.segment_length = self._num_parts * segments.segment_length
        self.num_targets = self._num_parts * self._part_targets
        self.reuse_length = segments.segment_length if with_next else None

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of steps per epoch."""
        return len(self.segments) + 1 - self._num_parts

    def _batch(self, step, rows):
        # The targets of all rows, because `num_targets` counts them.
        inputs, is_read, reset = self._read(step)
        places = self._target_places(step)  # [B, P]
        targets = np.take_along_axis(inputs, places, axis=1)
        is_target = np.take_along_axis(is_read, places, axis=1)
        is_target &= ~np.isin(targets, self.not_predicted)
        mapping = np.arange(self.segment_length) == places[rows, :, None]
        mapping &= is_target[rows, :, None]  # [B, P, T]
        return {
            "inputs": inputs[rows],
            "permutation_mask": self._permutation_mask(
                step, rows, mapping, is_read[rows]
            ),
            "target_mapping": mapping.astype(np.float32),
            "targets": np.where(is_target, targets, 0)[rows],
            "weights": is_target[rows].astype(np.float32),
            "reset": reset[rows],
            "num_targets": np.float32(is_target.sum()),
        }

    def _read(self, step):
        """Returns tokens `(B, T)`, masks of non-padding and resets `(B,)`."""
        epoch, step = divmod(step, self.steps_per_epoch)
        first = epoch * len(self.segments) + step
        parts = [self.segments.batch(first + i) for i in range(self._num_parts)]
        inputs, weights = (
            np.concatenate([part[key] for part in parts], axis=1)
            for key in ("inputs", "weights")
        )
        return inputs, weights > 0, parts[0]["reset"]

    def _target_places(self, step):
        """Returns the target positions of all rows, `(B, P)`, ascending."""
        num_targets, factor = self._part_targets, self.context_factor
        spans = np.arange(num_targets)
        parts = np.arange(self._num_parts)[:, None]
        rows = np.arange(self.batch_size)[:, None, None]

        def drawn(stream, index):
            return draw(self.seed, step, rows, parts, stream, index)

        # Span i has targets [starts[i], ends[i]); empty once there are enough.
        sizes = _draw_sizes(drawn(_SIZE, spans), self.max_span)
        ends = np.minimum(np.cumsum(sizes, axis=-1), num_targets)
        sizes = np.diff(ends, axis=-1, prepend=0)
        starts = ends - sizes  # [B, parts, targets of a part]
        # The tokens beyond `P K` go before or after the windows of the spans.
        length = self.segments.segment_length
        spare = length - num_targets * factor
        first = drawn(_OFFSET, 0) % np.uint64(spare + 1)
        free = sizes * (factor - 1)
        offsets = drawn(_PLACE, spans) % (free + 1).astype(np.uint64)
        begins = starts * factor + first.astype(int) + offsets.astype(int)
        # Target u is number `u - start` of its span.
        span = (ends[..., None, :] <= spans[:, None]).sum(axis=-1)
        inside = spans - np.take_along_axis(starts, span, axis=-1)
        places = np.take_along_axis(begins, span, axis=-1) + inside
        return (length * parts + places).reshape(self.batch_size, -1)

    def _permutation_mask(self, step, rows, mapping, is_read):
        """Computes the permutation mask, `(B, T, T)`."""
        index = np.arange(self.segment_length)
        part = index // self.segments.segment_length
        # Order in which tokens become visible: targets at random moments > 0,
        # all other tokens at 0.
        rows = np.arange(self.batch_size)[rows, None]
        moments = draw(self.seed, step, rows, _MOMENT, index) | np.uint64(1)
        moments = np.where(mapping.any(axis=1), moments, np.uint64(0))
        mask = (moments[:, :, None] > moments[:, None]) | (
            moments[:, None] == 0
        )
        mask &= part[:, None] == part
        mask |= part[:, None] > part
        return mask & is_read[:, None]


# Independent random streams.
_SIZE, _OFFSET, _PLACE, _MOMENT = range(4)


def _draw_sizes(drawn, max_span):
    """Draws lengths n from 1 to `max_span` with probabilities ~ `1 / n`."""
    weights = 1 / np.arange(1, max_span + 1)
    bounds = np.cumsum(weights)[:-1] / weights.sum()
    # A float64 holds the highest 53 bits.
    uniform = (drawn >> np.uint64(11)) * 2.0**-53
    return 1 + np.searchsorted(bounds, uniform, side="right")
