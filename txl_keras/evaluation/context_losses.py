"""Losses of the same tokens with contexts of different lengths.

More letters: `C` context lengths, `P` positions.
"""

from collections.abc import Callable
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.evaluation.evaluator import check_finite
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.models.segment_reader import as_float32


def context_losses(
    model: keras.Model,
    tokens: np.ndarray,
    positions: np.ndarray,
    context_lengths: Sequence[int],
    segment_length: int,
    memory_length: int | None = None,
    batch_size: int = 16,
    on_progress: Callable | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Computes the losses of tokens for several context lengths.

    The loss is `l(c, t) = -log p(x_t | x_{t-c}, ..., x_{t-1})` in appendix C of
    Dai et al., 2019. For each pair of a context length c and a position t, the
    model starts from the initial memory, reads exactly the c tokens before t,
    and predicts token t. No older token can influence the loss of any model.

    The context is read in segments of T tokens, with memory carried from one
    segment to the next. If T does not divide c, the first segment is shorter,
    so that the last segment is always whole. A model may use less than its
    context: without memory, it attends only to the last T tokens.

    Args:
        model: `TransformerXLCausalLM`.
        tokens: Integer array of shape `(n,)`, the token ids of a text.
        positions: Integer array of shape `(P,)`, the tokens to predict, such
            as `spread_positions` returns. Each must have as many tokens
            before it as the longest context.
        context_lengths: List of `C` integers.
        segment_length: Integer `T`. If it is at least the longest context
            length, each context is read in one segment.
        memory_length: Optional integer `M`; by default the model's own.
        batch_size: Integer `B`. It does not affect the losses.
        on_progress: Optional function, called with the number of pairs
            (c, t) scored so far and their total number.
        out: Optional float32 array of shape `(C, P)` to fill. Rows that are
            already finite are not computed again, so that a stopped measurement
            can resume.

    Returns:
        `out`, or a new float32 array of shape `(C, P)`, in nats.

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), appendix C.

    Example:

    ```python
    import numpy as np
    from txl_keras.evaluation import context_losses, spread_positions
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    text = np.frombuffer(b"to be or not to be, that is the question", "uint8")
    positions = spread_positions(len(text), 5, longest_context=20)
    losses = context_losses(model, text, positions, [10, 20], segment_length=8)
    print(losses.shape)  # (2, 5)
    ```
    """
    for length in context_lengths:
        check_integer("context_lengths", length, 1)
    longest = max(context_lengths)
    positions = check_token_ids(
        "positions", positions, len(tokens), longest,
        "Each needs as many tokens before it as the longest context",
    )  # fmt: skip
    check_shape("positions", positions, (None,))
    # [P, longest + 1]: the longest context, then the token to predict.
    windows = np.stack([tokens[t - longest : t + 1] for t in positions])
    check_token_ids("tokens", windows, model.backbone.vocabulary_size)
    windows = windows.astype(np.int32)
    sizes = segment_length, memory_length
    reader = SegmentReader(model.backbone, batch_size, *sizes)
    reader.begin()
    softmax = tf.function(model.softmax, autograph=False, reduce_retracing=True)
    if out is None:
        shape = len(context_lengths), len(positions)
        out = np.full(shape, np.nan, np.float32)
    done = 0
    for row, length in zip(out, context_lengths, strict=True):
        is_measured = np.isfinite(row).all()
        for start in range(0, len(positions), batch_size):
            batch = slice(start, start + batch_size)
            done += len(row[batch])
            if is_measured:
                continue
            reader.reset_rows(tf.fill((batch_size,), True))
            context = windows[batch, -length - 1 : -1]
            states = _last_states(model.backbone, reader, context, *sizes)
            row[batch] = softmax(states, windows[batch, -1:])[:, 0]
            given = f" with a context of {length} tokens"
            check_finite(row[batch], positions[batch], given)
            if on_progress:
                on_progress(done, out.size)
    return out


def spread_positions(
    num_tokens: int, num_positions: int, longest_context: int
) -> np.ndarray:
    """Returns evenly spaced positions of a text.

    Args:
        num_tokens: Integer, the length of the text.
        num_positions: Integer `P`.
        longest_context: Integer, the number of tokens that each position must
            have before it.

    Returns:
        int64 array of shape `(P,)` in ascending order.

    Example:

    >>> spread_positions(20, 5, longest_context=10).tolist()
    [10, 12, 14, 16, 18]
    """
    check_integer("num_positions", num_positions, 1)
    check_integer("longest_context", longest_context, 1, num_tokens - 1)
    available = num_tokens - longest_context
    if available < num_positions:
        raise ValueError(
            f"`num_positions` must be at most {max(available, 0)}, the number "
            f"of positions in {num_tokens:,} tokens with a context of "
            f"{longest_context:,} tokens. "
            f"Received: num_positions={num_positions}"
        )
    steps = np.arange(num_positions) * available // num_positions
    return longest_context + steps


def _last_states(backbone, reader, context, segment_length, memory_length):
    """Reads contexts `(b, c)`, b <= B; returns the last states `(b, 1, D)`."""
    if backbone.has_finite_reach:  # older tokens have no influence
        segments = 1 + warmup_segments(backbone, segment_length, memory_length)
        context = context[:, -segments * segment_length :]
    num_read = context.shape[1]
    first = (num_read - 1) % segment_length + 1  # may be shorter
    stops = range(first, num_read, segment_length)
    for part in np.split(context, stops, axis=1):
        hidden = reader.read_texts(as_float32, part)
    return np.stack([states[-1:] for states in hidden])
