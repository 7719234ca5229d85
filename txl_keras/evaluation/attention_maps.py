"""Where the heads of a model look.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `L`
layers.
"""

import numpy as np

from txl_keras.checks import check_token_ids


def attention_maps(model, token_ids, memory=None):
    """Attention probabilities of all heads while a segment is read.

    Args:
        model: `TransformerXLCausalLM`, of any type of attention.
        token_ids: Integer array of shape `(B, T)`.
        memory: Optional `Memory` of what came before; by default cold.

    Returns:
        The pair of maps and the new `Memory`. Maps are float32
        `(L, B, N, T, S)`: the row of a token sums to 1, over the M entries of
        memory, oldest first, and the T tokens of the segment; what it may not
        see is 0.

    Raises:
        ValueError: If the model has no attention, or ids are not in its
            vocabulary.

    Example:

    ```python
    import numpy as np
    from txl_keras.evaluation import attention_maps
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    text = np.frombuffer(b"to be or not to be", "uint8")[None]
    _, memory = attention_maps(model, text[:, :10])
    maps, memory = attention_maps(model, text[:, 10:], memory)
    print(maps.shape)  # (1, 1, 4, 8, 136): 128 of memory, 8 of the segment
    ```
    """
    check_attends(model)
    check_token_ids("token_ids", token_ids, model.backbone.vocabulary_size)
    _, memory, scores = model.backbone(
        np.asarray(token_ids, np.int32),
        memory=memory,
        return_attention_scores=True,
    )
    return np.stack([probabilities.numpy() for probabilities in scores]), memory


def attention_maps_at(
    model, tokens, starts, segment_length, memory_length=None
):
    """Attention probabilities at some places of a text, memory full.

    At each place the model reads a segment; before it, from a cold start, as
    many whole segments as fill memory.

    Args:
        model: `TransformerXLCausalLM`.
        tokens: Ids of a text, `(n,)`.
        starts: `B` integers, where in the text segments begin. Each has
            `warmup_length` tokens before it.
        segment_length: Integer `T`.
        memory_length: Optional integer `M`; by default the model's own.

    Returns:
        Maps `(L, B, N, T, S)`, see `attention_maps`.

    Raises:
        ValueError: If a segment begins too early or ends after the text, or
            as `attention_maps`.
    """
    check_attends(model)
    if memory_length is None:
        memory_length = model.backbone.memory_length
    before = warmup_length(segment_length, memory_length)
    starts = np.asarray(starts)
    last = len(tokens) - segment_length
    if starts.min() < before or starts.max() > last:
        raise ValueError(
            f"`starts` must be from {before:,}, so many tokens fill memory, to "
            f"{last:,}, where the last segment of {segment_length} tokens "
            f"begins. Received: from {starts.min():,} to {starts.max():,}"
        )
    windows = np.stack(
        [tokens[start - before : start + segment_length] for start in starts]
    )
    memory = model.initial_memory(len(starts), memory_length)
    for first in range(0, before, segment_length):
        segment = windows[:, first : first + segment_length].astype(np.int32)
        _, memory = model.backbone(segment, memory=memory)
    return attention_maps(model, windows[:, before:], memory)[0]


def warmup_length(segment_length, memory_length):
    """Tokens of the whole segments that fill a memory.

    Args:
        segment_length, memory_length: Integers `T`, `M`.

    Returns:
        Integer.

    Example:

    >>> warmup_length(segment_length=8, memory_length=20)
    24
    """
    return -(-memory_length // segment_length) * segment_length


def attention_by_distance(maps):
    """How much attention the token d places back gets, for each distance d.

    Query i and key j of a map are the distance `M + i - j` apart; 0 is the
    query's own token. The distances up to M are in reach of all queries,
    those beyond only of later and later ones: the mean is over the queries
    that have a key there.

    Args:
        maps: Float array of shape `(..., T, S)`, such as those of
            `attention_maps`, with memory full: what is masked is no
            attention, and counts as 0.

    Returns:
        Array of shape `(..., S)`, for the distances 0, ..., S - 1.

    Raises:
        ValueError: If there are fewer keys than queries.

    Example: memory of one token, a segment of two.

    >>> attention_by_distance(np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6]]))
    array([0.55, 0.35, 0.2 ])
    """
    length, num_keys = maps.shape[-2:]
    num_memory = num_keys - length
    if num_memory < 0:
        raise ValueError(
            "`maps` must have shape (..., T, S) with S at least T. Received: "
            f"maps.shape={maps.shape}"
        )
    # Diagonal k holds the keys j = i + k.
    diagonals = [
        np.diagonal(maps, num_memory - distance, -2, -1)
        for distance in range(num_keys)
    ]
    return np.stack([keys.mean(axis=-1) for keys in diagonals], axis=-1)


def check_attends(model):
    """Raises `ValueError` if a model has no attention to look at.

    Args:
        model: The language model.
    """
    if not getattr(model.backbone, "shows_attention", False):
        raise ValueError(
            "`model` must have attention, a TransformerXLBackbone. Received: "
            f"backbone={type(model.backbone).__name__}"
        )


def check_heads(backbone, layers, heads):
    """Raises `ValueError` if a backbone has no such layers or heads.

    Args:
        backbone: `TransformerXLBackbone`.
        layers, heads: Lists of integers, counted from 0.
    """
    for name, numbers, size in (
        ("layers", layers, backbone.num_layers),
        ("heads", heads, backbone.num_heads),
    ):
        wrong = [number for number in numbers if not 0 <= number < size]
        if wrong or not numbers:
            raise ValueError(
                f"`{name}` must be numbers from 0 to {size - 1}, of the "
                f"{size} that the model has. Received: {name}={numbers}"
            )
