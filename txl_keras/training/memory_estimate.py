"""What a replica needs memory for, before a step was tried.

Letters: `B` rows of one replica, `T` segment, `M` memory, `S` = M + T keys,
`N` heads, `H` head size, `D` hidden size, `F` inner size of the feed-forward
networks, `V` vocabulary, `L` layers.
"""

import math

import tensorflow as tf

from txl_keras.checks import check_integer


def estimate_bytes(model, optimizer, rows, segment_length, accumulate_steps=1):
    """Estimates what training takes on one replica.

    All is exact but `activations`, counted in numbers a row:

        L blocks keep          3 N T S + T (10 D + 3 NH + 2 F) + S (D + 2 NH)
        one of them needs too  3 N T S + 2 T F
        and the softmax        2 T V

    and 2 N T S, not 3, are kept without dropout of attention. Of an LSTM L
    layers keep 11 T D: input, output, cell, gates before and after.

    Fitted to the peak resident set of training steps of Transformer-XL that
    XLA compiled for a CPU in float32: gradients and activations were 0.8 to
    1.0 of its growth where that was 0.7 GB and more; compiling took 0.1 to 0.2
    GB besides. In 16 bits (not measured) the numbers are half as large, but
    for the softmax and a third of the scores. With cutoffs V is the head and a
    sixteenth of the largest tail.

    Args:
        model: `TransformerXLCausalLM`.
        optimizer: Its optimizer, built, as `Trainer` leaves it.
        rows: Integer `B`, the rows of one replica.
        segment_length: Integer `T`.
        accumulate_steps: Integer, the pieces that the rows are computed in;
            their gradients are added up, which takes them twice.

    Returns:
        Dictionary of integers: `weights`, `gradients`, `optimizer`, `memory`
        (a `MemoryStack` of these rows), `activations`.

    Raises:
        ValueError: If the optimizer was not built, or a size is no integer of
            at least 1.

    Example:

    ```python
    import keras
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.training.memory_estimate import estimate_bytes

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=2)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    parts = estimate_bytes(model, optimizer, rows=16, segment_length=128)
    gibibytes = sum(parts.values()) / 2**30
    ```
    """
    check_integer("rows", rows, 1)
    check_integer("segment_length", segment_length, 1)
    check_integer("accumulate_steps", accumulate_steps, 1)
    if not optimizer.built:
        raise ValueError(
            "`optimizer` must be built, or its slots are not known: call "
            "optimizer.build(model.trainable_variables). Received: "
            f"optimizer={optimizer}"
        )
    return {
        "weights": _bytes_of(model.weights),
        "gradients": _bytes_of(model.trainable_variables)
        * min(accumulate_steps, 2),
        "optimizer": _bytes_of(optimizer.variables),
        "memory": _memory_bytes(model.backbone, rows),
        "activations": rows
        // accumulate_steps
        * _activation_bytes(model, segment_length),
    }


def _bytes_of(variables):
    return sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
        for variable in variables
    )


def _memory_bytes(backbone, rows):
    entries = backbone.memory_length * backbone.hidden_dim
    state = entries * tf.as_dtype(backbone.compute_dtype).size
    # And an int32, how many entries are valid.
    return backbone.num_states * rows * (state + 4)


def _activation_bytes(model, segment_length):
    """Of one row: see `estimate_bytes`."""
    backbone = model.backbone
    logits = 4 * segment_length * _entries_of_softmax(backbone.token_embedding)
    if not backbone.has_attention:
        kept = 11 * segment_length * backbone.hidden_dim
        kept *= tf.as_dtype(backbone.compute_dtype).size
        return backbone.num_layers * kept + 2 * logits
    return _block_bytes(backbone, segment_length) + 2 * logits


def _block_bytes(backbone, segment_length):
    """Of one row: all blocks."""
    size = tf.as_dtype(backbone.compute_dtype).size
    num_keys = backbone.memory_length + segment_length
    width = backbone.num_heads * backbone.head_dim
    scores = backbone.num_heads * segment_length * num_keys
    # Probabilities, the same as weights, and where those were dropped.
    kept_scores = (4 + size * (2 if backbone.attention_dropout else 1)) * scores
    kept = kept_scores + size * (
        segment_length
        * (10 * backbone.hidden_dim + 3 * width + 2 * backbone.intermediate_dim)
        + num_keys * (backbone.hidden_dim + 2 * width)
    )
    needed = (4 + 2 * size) * scores
    needed += 2 * size * segment_length * backbone.intermediate_dim
    return backbone.num_layers * kept + needed


def _entries_of_softmax(embedding):
    """Logits that a token has at a time."""
    sizes = [embedding.cluster_size(i) for i in range(embedding.num_clusters)]
    head = sizes[0] + len(embedding.cutoffs)
    return head + max(sizes[1:], default=0) // 16
