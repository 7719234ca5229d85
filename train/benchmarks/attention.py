"""Times the attention of one block alone.

`txl_keras` is `RelativeMultiHeadAttention`, `plain` the textbook attention
with the same weights, and `bare` calls the functions of the layer without the
layer: see bare_tensorflow.py. Each is timed forward, and forward and backward.
The gradient is with respect to the segment and all weights; memory has no
gradient, as in training.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size, `D` hidden size.
"""

import tensorflow as tf

from benchmarks import bare_tensorflow
from benchmarks.report import report
from benchmarks.training import bare_contenders
from benchmarks.training import choose_compiler
from benchmarks.turns import take_turns
from benchmarks.turns import timed


def run(model, settings, peer=None):
    """Times attention, as the package describes."""
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
                    choose_compiler(name, model, training),
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
    """Returns forward FLOPs of one block's attention, as `model_flops` does."""
    num_keys = backbone.memory_length + segment_length
    width = backbone.num_heads * backbone.head_dim
    dense = 4 * (segment_length + num_keys) * backbone.hidden_dim * width
    return batch_size * (dense + 6 * segment_length * num_keys * width)


def _inputs(backbone, batch_size, length):
    """Makes a random segment, a full memory with its mask, and sinusoids."""
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
    """Returns, by contender, its function and the weights to differentiate."""
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
    """Blocks until all tensors are computed."""
    for tensor in tensors:
        tensor.numpy()
