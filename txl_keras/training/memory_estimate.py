"""Estimate of the device memory that a training step needs per replica.

Letters: `B` rows of one replica, `T` segment, `M` memory, `S` = M + T keys,
`N` heads, `H` head size, `D` hidden size, `F` inner size of the feed-forward
networks, `V` vocabulary, `L` layers.
"""

import math

import tensorflow as tf


def estimate_bytes(model, optimizer, rows, segment_length, accumulate_steps=1):
    """Estimates the bytes that training takes on one replica, by kind.

    Returns a dictionary of integers: `weights`, `gradients`, `optimizer`,
    `memory` (a `MemoryStack` of `rows` rows) and `activations`. The optimizer
    must be built. Gradient accumulation keeps a second set of gradients for
    their sum.

    All entries are exact except `activations`, which counts these numbers per
    row:

        each of L blocks keeps  3 N T S + T (10 D + 3 NH + 2 F) + S (D + 2 NH)
        one block also needs    3 N T S + 2 T F
        the softmax needs       2 T V

    (2 N T S instead of 3 are kept without attention dropout.) An LSTM layer
    keeps 11 T D: input, output, cell, and the gates before and after
    activation.

    The formula was fitted to the peak resident set of Transformer-XL training
    steps that XLA compiled for a CPU in float32. Gradients and activations were
    0.8 to 1.0 of its growth where that was at least 0.7 GB; compiling took 0.1
    to 0.2 GB more. In 16 bits (not measured) the numbers are half as large,
    except for the softmax and a third of the attention scores. With cutoffs, V
    is the head and a sixteenth of the largest tail.
    """
    with tf.Graph().as_default():  # which allocates nothing
        memory = model.backbone.memory_stack(rows).state_variables
    return {
        "weights": _bytes_of(model.weights),
        "gradients": _bytes_of(model.trainable_variables)
        * min(accumulate_steps, 2),
        "optimizer": _bytes_of(optimizer.variables),
        "memory": _bytes_of(memory),
        "activations": rows
        // accumulate_steps
        * _activation_bytes(model, segment_length),
    }


def _bytes_of(variables):
    return sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
        for variable in variables
    )


def _activation_bytes(model, segment_length):
    """Returns the bytes of the activations of one row; see `estimate_bytes`."""
    backbone = model.backbone
    embedding = backbone.token_embedding
    sizes = [embedding.cluster_size(i) for i in range(embedding.num_clusters)]
    # The logits of a token that exist at the same time.
    logits = sizes[0] + len(embedding.cutoffs)
    logits += max(sizes[1:], default=0) // 16
    softmax = 2 * 4 * segment_length * logits
    size = tf.as_dtype(backbone.compute_dtype).size
    if not backbone.has_attention:
        kept = 11 * segment_length * backbone.hidden_dim * size
        return backbone.num_layers * kept + softmax
    num_keys = backbone.past_length() + segment_length
    width = backbone.num_heads * backbone.head_dim
    scores = backbone.num_heads * segment_length * num_keys
    # float32 probabilities, attention weights, and weights after dropout.
    kept_scores = (4 + size * (2 if backbone.attention_dropout else 1)) * scores
    kept = kept_scores + size * (
        segment_length
        * (10 * backbone.hidden_dim + 3 * width + 2 * backbone.intermediate_dim)
        + num_keys * (backbone.hidden_dim + 2 * width)
    )
    needed = (4 + 2 * size) * scores
    needed += 2 * size * segment_length * backbone.intermediate_dim
    return backbone.num_layers * kept + needed + softmax
