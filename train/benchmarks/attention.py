"""How long attention takes, of one block and nothing else.

`txl_keras` is `RelativeMultiHeadAttention`, `plain` the textbook's with the
same weights, and `bare` the functions of the layer without it: see
bare_tensorflow.py. Forward, and forward and backward: the gradient by the
segment and all weights; memory has none, as in training.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size, `D` hidden size.
"""

import tensorflow as tf

from benchmarks import bare_tensorflow
from benchmarks.report import report
from benchmarks.training import bare_contenders
from benchmarks.training import compile_way
from benchmarks.turns import take_turns
from benchmarks.turns import timed


def run(model, settings, peer=None):
    """Times attention: see the package.

    Raises:
        ValueError: If the model has no relative attention.
    """
    backbone = model.backbone
    if backbone.attention_type != "relative":
        raise ValueError(
            "`attention_type` must be relative for --experiment=attention. "
            f"Received: attention_type={backbone.attention_type}"
        )
    batch_size, length = settings.batch_size, settings.segment_length
    dtype = backbone.compute_dtype
    inputs = _inputs(backbone, batch_size, length)
    results = {}
    for unit, wrap, training in (
        ("forward", _forward, False),
        ("forward and backward", _forward_and_backward, True),
    ):
        work = 3 if training else 1
        contenders = {
            name: timed(
                wrap(
                    attend,
                    weights,
                    inputs,
                    compile_way(name, model, training),
                ),
                settings.calls_per_turn,
            )
            for name, (attend, weights) in _attentions(model, settings).items()
        }
        times = take_turns(contenders, settings.turns)
        results[unit.replace(" ", "_")] = report(
            times,
            unit,
            batch_size * length,
            work * attention_flops(backbone, batch_size, length),
            dtype,
        )
    return {"segment_length": length, **results}


def attention_flops(backbone, batch_size, segment_length):
    """Operations of one block's attention, counted as `model_flops` does.

    Args:
        backbone: `TransformerXLBackbone`.
        batch_size, segment_length: Integers `B` and `T`.

    Returns:
        Integer, of forward.
    """
    num_keys = backbone.memory_length + segment_length
    width = backbone.num_heads * backbone.head_dim
    dense = 4 * (segment_length + num_keys) * backbone.hidden_dim * width
    return batch_size * (dense + 6 * segment_length * num_keys * width)


def _inputs(backbone, batch_size, length):
    """Segment and memory, full, and the sinusoids."""
    dtype, hidden_dim = backbone.compute_dtype, backbone.hidden_dim
    num_memory = backbone.memory_length
    x, memory = (
        tf.cast(tf.random.normal((batch_size, n, hidden_dim)), dtype)
        for n in (length, num_memory)
    )
    encoding = bare_tensorflow.sinusoids(
        num_memory + length, hidden_dim, backbone.clamp_length
    )
    mask = tf.ones((batch_size, num_memory), tf.bool)
    return x, memory, mask, tf.cast(encoding, dtype)


def _attentions(model, settings):
    """Pairs of a function and the weights that its gradient is taken by."""
    attentions = {}
    if "txl_keras" in settings.contenders:
        attentions["txl_keras"] = _layer(model.backbone)
    for name, bare in bare_contenders(model, settings).items():
        attentions[name] = _bare(bare)
    return attentions


def _layer(backbone):
    layer = backbone.blocks[0].attention
    weights = layer.trainable_weights
    biases = None
    if layer.tie_attention_biases:
        biases = (
            backbone.content_attention_bias,
            backbone.positional_attention_bias,
        )
        weights = [*weights, *biases]

    def attend(x, memory, mask, encoding):
        return layer(
            x,
            memory=memory,
            memory_mask=mask,
            position_encoding=encoding,
            attention_biases=biases,
        )

    return attend, [weight.value for weight in weights]


def _bare(bare):
    def attend(x, memory, mask, encoding):
        weights = bare.attention_weights(layer=0)
        return bare.attend(x, memory, mask, encoding, weights)

    weights = [
        weight
        for name, weight in bare.weights.items()
        if name.startswith("block_0/attention/") or "attention_bias" in name
    ]
    return attend, weights


def _forward(attend, weights, inputs, compiled):
    forward = compiled(attend)
    return lambda: _wait(forward(*inputs))


def _forward_and_backward(attend, weights, inputs, compiled):
    @compiled
    def gradients(x, *others):
        with tf.GradientTape() as tape:
            tape.watch(x)
            attended = attend(x, *others)
        return tape.gradient(attended, [x, *weights])

    return lambda: _wait(*gradients(*inputs))


def _wait(*tensors):
    """Until all are there."""
    for tensor in tensors:
        tensor.numpy()
