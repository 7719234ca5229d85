"""Attention probabilities of the heads of a model."""

from collections.abc import Sequence

import keras
import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_token_ids
from txl_keras.evaluation.evaluator import segments_in_memory


def attention_maps(
    model: keras.Model,
    tokens: np.ndarray,
    starts: Sequence[int],
    segment_length: int,
    memory_length: int | None = None,
) -> np.ndarray:
    """Returns the attention probabilities of all heads in segments of a text.

    To fill its memory, the model first reads as many whole segments before each
    position as needed. For the maps of any other segment call
    `model.backbone(ids, memory=memory, return_attention_scores=True)`.

    Args:
        model: `TransformerXLCausalLM` with any `attention_type`.
        tokens: Integer array of shape `(n,)`, the token ids of a text.
        starts: List of `B` integers, the positions at which the segments
            begin. Each must have at least `ceil(M / T) * T` tokens before it.
        segment_length: Integer `T`.
        memory_length: Optional integer `M`; by default the model's own.

    Returns:
        float32 array of shape `(L, B, N, T, S)`. The keys of a query are the M
        entries of memory, oldest first, followed by the T tokens of the
        segment. Their probabilities sum to 1; masked keys have 0.

    Example:

    ```python
    import numpy as np
    from txl_keras.evaluation import attention_maps
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    text = np.frombuffer(b"to be or not to be, that is", "uint8")
    maps = attention_maps(model, text, [16], segment_length=8, memory_length=16)
    print(maps.shape)  # (1, 1, 2, 8, 24): 16 of memory, 8 of the segment
    ```
    """
    check_attends(model)
    check_integer("segment_length", segment_length, 1)
    before = segment_length * segments_in_memory(
        model.backbone, segment_length, memory_length
    )
    starts = check_token_ids(
        "starts", starts, len(tokens) - segment_length + 1, before,
        "The text must contain each segment, and fill memory before it",
    )  # fmt: skip
    windows = np.stack(
        [tokens[s - before : s + segment_length] for s in starts]
    )
    check_token_ids("tokens", windows, model.backbone.vocabulary_size)
    memory = model.initial_memory(len(starts), memory_length)
    for first in range(0, before + 1, segment_length):
        segment = windows[:, first : first + segment_length].astype(np.int32)
        # Only the last segment needs scores; earlier they would take memory.
        _, memory, *scores = model.backbone(
            segment,
            memory=memory,
            return_attention_scores=first == before,
        )
    return np.stack([np.asarray(layer) for layer in scores[0]])


def attention_by_distance(
    model: keras.Model,
    tokens: np.ndarray,
    starts: Sequence[int],
    segment_length: int,
    memory_length: int | None = None,
    batch_size: int = 16,
) -> np.ndarray:
    """Computes the mean attention probability at each query-key distance.

    This is the figure in appendix D of Dai et al., 2019. At distance 0 a query
    attends to its own token. Every query has a key at each distance up to M;
    for larger distances the mean is over the queries that have such a key.

    Args:
        model, tokens, starts, segment_length, memory_length: See
            `attention_maps`; the number of `starts` is not limited.
        batch_size: Integer `B`, how many segments to read at once.

    Returns:
        float64 array of shape `(L, N, S)`, for the distances 0, ..., S - 1,
        means over all queries of all segments.

    Example:

    ```python
    import numpy as np
    from txl_keras.evaluation import attention_by_distance
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    text = np.frombuffer(b"to be or not to be, that is", "uint8")
    means = attention_by_distance(model, text, [16, 18], 8, memory_length=16)
    print(means.shape)  # (1, 2, 24)
    ```
    """
    check_integer("batch_size", batch_size, 1)
    total = 0.0
    for first in range(0, max(len(starts), 1), batch_size):
        rows = starts[first : first + batch_size]
        maps = attention_maps(
            model, tokens, rows, segment_length, memory_length
        )
        total += mean_diagonals(maps).sum(axis=1, dtype=np.float64)
    return total / len(starts)


def mean_diagonals(maps):
    """Returns means `(..., S)` of maps `(..., T, S)` by query-key distance."""
    # Query i and key j are M + i - j tokens apart, and the diagonal with offset
    # k holds the keys j = i + k.
    length, num_keys = maps.shape[-2:]
    means = [
        np.diagonal(maps, num_keys - length - distance, -2, -1).mean(axis=-1)
        for distance in range(num_keys)
    ]
    return np.stack(means, axis=-1)


def check_attends(model):
    """Raises `ValueError` if the model has no meaningful maps by distance."""
    if not getattr(model.backbone, "shows_attention", False):
        raise ValueError(
            "`model` must have a backbone with attention to single tokens, "
            "such as TransformerXLBackbone. Received: "
            f"backbone={type(model.backbone).__name__}"
        )
