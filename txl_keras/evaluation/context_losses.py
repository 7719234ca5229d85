"""Scores of the same tokens, each with a given number of tokens before it.

Letters: `B` windows read side by side, `T` segment, `M` memory, `C` context
lengths, `P` positions.
"""

import sys

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_token_ids
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.training.strategy import compile_layers
from txl_keras.training.strategy import compile_replica_function


def context_losses(
    model,
    tokens,
    positions,
    context_lengths,
    segment_length,
    memory_length=None,
    batch_size=16,
    on_progress=None,
):
    """Nats of some tokens, predicted from c tokens, for each context length c.

    `l(c, t) = -log p(x_t | x_{t-c}, ..., x_{t-1})` of appendix C of Dai et
    al., 2019. Each (c, t) has a reading of its own: from a cold start the
    model reads the c tokens before t, and no others, and predicts t. So
    nothing older than c can have an influence, whatever the model.

    They are read as the model is used: in segments of T tokens, the first one
    shorter where T does not divide c, with memory from one to the next; t
    comes after a whole segment. How far back in the c tokens the model looks
    is its own matter: one without memory sees the last T of them.

    Args:
        model: `TransformerXLCausalLM`.
        tokens: Ids of a text, `(n,)`.
        positions: Integer array of shape `(P,)`, which tokens to predict:
            `spread_positions`. Each has the longest context before it.
        context_lengths: `C` integers.
        segment_length: Integer `T`. With the longest context length or more,
            all is read in one segment.
        memory_length: Optional integer `M`; by default the model's own.
        batch_size: Integer `B`. It changes no score.
        on_progress: Optional function of the readings done and in all.

    Returns:
        float32 array of shape `(C, P)`.

    Raises:
        ValueError: If a size is too small, or a position has not so many
            tokens before it.
        FloatingPointError: If a score is not finite, with the position.

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
    positions = np.asarray(positions)
    longest = _longest(context_lengths)
    _check_positions(positions, longest, len(tokens))
    # The context and the token itself.
    windows = np.stack([tokens[t - longest : t + 1] for t in positions])
    check_token_ids("tokens", windows, model.backbone.vocabulary_size)
    scorer = _WindowScorer(model, batch_size, segment_length, memory_length)
    losses = np.empty((len(context_lengths), len(positions)), np.float32)
    done = 0
    for of_length, length in zip(losses, context_lengths, strict=True):
        for start in range(0, len(positions), batch_size):
            rows = slice(start, start + batch_size)
            of_length[rows] = scorer.score(windows[rows, -length - 1 :])
            done += len(of_length[rows])
            if on_progress:
                on_progress(done, losses.size)
    _check_finite(losses, positions, context_lengths)
    return losses


def spread_positions(num_tokens, num_positions, longest_context):
    """Positions all over a text, the same ones each time.

    Args:
        num_tokens: Integer, of the text.
        num_positions: Integer `P`.
        longest_context: Integer, tokens that each has before it.

    Returns:
        int64 array of shape `(P,)`, rising, evenly spaced.

    Raises:
        ValueError: If the text is too short.

    Example:

    >>> spread_positions(20, 5, longest_context=10).tolist()
    [10, 12, 14, 16, 18]
    """
    check_integer("num_positions", num_positions, 1)
    check_integer("longest_context", longest_context, 1)
    available = num_tokens - longest_context
    if available < num_positions:
        raise ValueError(
            f"`num_positions` must be at most {max(available, 0)}: so many "
            f"of the {num_tokens:,} tokens have {longest_context:,} before "
            f"them. Received: num_positions={num_positions}"
        )
    steps = np.arange(num_positions) * available // num_positions
    return longest_context + steps


class _WindowScorer:
    """Reads windows from a cold start and scores the token after each."""

    def __init__(self, model, batch_size, segment_length, memory_length):
        backbone = model.backbone
        self._model = model
        self._reader = SegmentReader(
            backbone, batch_size, segment_length, memory_length
        )
        self._batch_size = batch_size
        self._segment_length = segment_length
        # Positions that are counted from the end of a segment take no padding.
        self._pads = backbone.remembers
        # What is further back has no influence, and is not read.
        self._farthest = _reach(backbone, segment_length, memory_length)
        strategy = tf.distribute.get_strategy()
        self._score = compile_layers(
            self._read_and_score, strategy, model, training=False
        )
        self._remember = compile_replica_function(
            self._reader.remember, strategy
        )
        self._reader.begin()

    def score(self, windows):
        """Nats of the last token of each window, given all others of it.

        Args:
            windows: Ids, `(b, c + 1)`, with b at most B.

        Returns:
            float32 array of shape `(b,)`.
        """
        rows = np.zeros((self._batch_size, windows.shape[1]), np.int32)
        rows[: len(windows)] = windows
        context, targets = rows[:, :-1], tf.constant(rows[:, -1:])
        context = context[:, -self._farthest :]
        self._reader.reset_rows(tf.fill((self._batch_size,), True))
        for segment in self._segments(context):
            length = segment.shape[1]
            nll, entries = self._score(
                self._padded(segment), tf.constant(length - 1), targets
            )
            lengths = tf.fill((self._batch_size,), length)
            self._remember(entries, lengths)
        return nll.numpy()[: len(windows)]

    def _segments(self, context):
        """Parts `(B, T)` of `(B, c)`, the first of them with what is left."""
        length = context.shape[1]
        first = (length - 1) % self._segment_length + 1
        stops = range(first, length + 1, self._segment_length)
        return np.split(context, stops[:-1], axis=1)

    def _padded(self, segment):
        """To one length, or XLA would compile one program for each."""
        if self._pads:
            missing = self._segment_length - segment.shape[1]
            segment = np.pad(segment, ((0, 0), (0, missing)))
        return tf.constant(segment)

    def _read_and_score(self, inputs, last, targets):
        """Nats `(B,)` of what follows the token number `last`."""
        hidden, entries = self._reader.read(inputs)
        hidden = tf.gather(hidden, last, axis=1)[:, None]  # [B, 1, D]
        return self._model.softmax(hidden, targets)[:, 0], entries


def _reach(backbone, segment_length, memory_length):
    """How many tokens can have an influence on the next."""
    if not backbone.has_attention:
        return sys.maxsize
    return segment_length * (
        1 + warmup_segments(backbone, segment_length, memory_length)
    )


def _longest(context_lengths):
    if not np.size(context_lengths) or np.ndim(context_lengths) != 1:
        raise ValueError(
            "`context_lengths` must be one integer or more, in a list. "
            f"Received: {context_lengths}"
        )
    return max(
        check_integer("context_lengths", length, 1)
        for length in context_lengths
    )


def _check_positions(positions, longest, num_tokens):
    is_one_row = positions.ndim == 1 and positions.dtype.kind in "iu"
    if not (is_one_row and len(positions)):
        raise ValueError(
            "`positions` must be integers of shape (P,). Received: shape "
            f"{positions.shape}, dtype {positions.dtype}"
        )
    first, last = positions.min(), positions.max()
    if first < longest or last >= num_tokens:
        raise ValueError(
            f"`positions` must be at least {longest}, the longest of "
            f"`context_lengths`, and less than the {num_tokens} tokens. "
            f"Received: positions from {first} to {last}"
        )


def _check_finite(losses, positions, context_lengths):
    wrong = np.argwhere(~np.isfinite(losses))
    if len(wrong):
        i, j = wrong[0]
        raise FloatingPointError(
            f"The score of token {positions[j]} of the text (the first is 0) "
            f"with {context_lengths[i]} tokens before it must be finite. "
            f"Received: {losses[i, j]} nats. Weights that are not finite, or "
            "float16, may be the cause."
        )
