"""Batches for permutation language modelling."""

import random
from collections.abc import Sequence

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.data.segments import Segments
from txl_keras.data.segments import check_rules
from txl_keras.data.step_batches import StepBatches


class PermutedSegments(StepBatches):
    """Adds permutation language modelling targets and masks to segments.

    One in K tokens is a target (partial prediction, section 2.3 of Yang et al.,
    2019). Targets come in spans (section 3.1), drawn as in the original code,
    so that every segment has `P = T // K` targets. Then an order of the targets
    is drawn. A target is visible to the targets after it in this order; every
    other token is visible to all tokens.

    Example of 4 tokens with K = 2: the span "b c" was drawn, c before b. These
    are the rows of `permutation_mask`; the model adds the diagonal:

               a  b  c  d
        a      1  0  0  1
        b      1  0  1  1     b is predicted from all others
        c      1  0  0  1     c is predicted from all others except b
        d      1  0  0  1

    All random choices depend only on the seed, the step and the row.

    Args:
        segments: `Segments` without `half_loss` and `warmup_segments`.
            Their order, memory resets and padding are kept.
        context_factor: Integer K.
        max_span: Integer, the longest span.
        not_predicted: Optional integers, ids that are never targets, such as
            the ids of `[CLS]` and `[SEP]`. A row whose spans contain such
            tokens has fewer targets. These tokens are visible to all others.
        with_next: Boolean. False: a batch is one batch of `segments`. True, as
            in the original code: each row of a batch is a segment followed by
            the next segment, each with its own order. Successive batches
            advance by one segment. Pass `PermutedSegments.reuse_length` to the
            model as its `reuse_length`.
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
            this length with `with_next`.
        num_targets: Integer P.
        reuse_length: Optional integer, the number of tokens at the start of a
            segment that the model must store in memory; None for all.

    Example:

    >>> from txl_keras.data import Segments
    >>> text = np.frombuffer(b"what is not seen is said", "uint8")
    >>> segments = Segments(text, 1, 20, drop_remainder=True)
    >>> permuted = PermutedSegments(segments, context_factor=4)
    >>> batch = permuted.batch(0)
    >>> batch["target_mapping"][0].argmax(axis=-1).tolist()  # two spans
    [3, 4, 5, 14, 15]

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
            "`with_next` (--reuse_half) needs consecutive segments: "
            "order='sequential', no `reset_documents`, at least 2 per row": (
                with_next and not (is_plain and len(segments) > 1)
            ),
        }
        options = {"context_factor": context_factor, "per_row": len(segments)}
        check_rules(segments, rules, **options)
        self._num_parts = 2 if with_next else 1
        self._sizes = range(1, max_span + 1)
        self._shares = [1 / size for size in self._sizes]
        self.batch_size = segments.batch_size
        self.segment_length = self._num_parts * segments.segment_length
        part_targets = segments.segment_length // context_factor
        self.num_targets = self._num_parts * part_targets
        self.reuse_length = segments.segment_length if with_next else None

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of steps per epoch."""
        return len(self.segments) + 1 - self._num_parts

    def _batch(self, step, rows):
        inputs, is_read, reset = self._read(step)
        # For all rows, because `num_targets` counts them.
        drawn = [self._draw(step, row) for row in range(self.batch_size)]
        places, order = np.array(drawn).swapaxes(0, 1)  # [B, P]
        targets = np.take_along_axis(inputs, places, axis=1)
        is_target = np.take_along_axis(is_read, places, axis=1)
        is_target &= ~np.isin(targets, self.not_predicted)
        # Step at which each token becomes visible: targets after all others.
        moments = np.zeros(inputs.shape, int)
        np.put_along_axis(moments, places, order * is_target, axis=1)
        moments = moments[rows]
        mask = moments[:, :, None] > moments[:, None]
        mask |= moments[:, None] == 0
        index = np.arange(self.segment_length)
        part = index // self.segments.segment_length
        mask &= part[:, None] == part
        mask |= part[:, None] > part
        mapping = index == places[rows, :, None]
        return {
            "inputs": inputs[rows],
            "permutation_mask": mask & is_read[rows, None],
            "target_mapping": np.float32(mapping & is_target[rows, :, None]),
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

    def _draw(self, step, row):
        """Returns the P target positions of a row, and their order from 1."""
        generator = random.Random(f"{self.seed} {step} {row}")
        length, factor = self.segments.segment_length, self.context_factor
        places = []
        for part in range(self._num_parts):
            left = length // factor
            # The tokens beyond `P K` go before or after the windows of spans.
            window = part * length + generator.randint(
                0, length - left * factor
            )
            while left:
                (size,) = generator.choices(self._sizes, self._shares)
                size = min(size, left)
                start = window + generator.randint(0, size * (factor - 1))
                places += range(start, start + size)
                window += size * factor
                left -= size
        order = generator.sample(range(1, len(places) + 1), len(places))
        return places, order
