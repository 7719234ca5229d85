"""Utilization of a machine: operations of a model, peak speed, memory.

More letters: `F` inner size of the feed-forward networks, `C` clusters after
the first.
"""

import sys
import time

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.models.segment_reader import bytes_of

try:
    import resource
except ImportError:  # Windows
    resource = None

# From milliseconds on a CPU to enough work for an accelerator.
_SIZES = (512, 1024, 2048, 4096, 8192)
_SECONDS_PER_TRIAL = 0.04
_TRIALS = 5


def model_flops(model, batch_size, segment_length, training=False):
    """Counts the nominal floating-point operations of a step.

    A multiplication and an addition count as two. Per row, a layer counts

        4 T D NH    queries and output
        4 S D NH    keys and values, including keys and values of the memory
        4 T D F     feed-forward
        6 T S NH    content scores, position scores, weighted sum

    and the softmax counts `2 T D V`. Attention without position scores
    (`"vaswani"`, `"al_rfou"`) has `4 T S NH`. Masked positions count; look-ups,
    norms and the projection of positions (once for all rows) do not. The
    backward pass counts twice as much as the forward pass. An LSTM layer counts
    `16 T D D`, two matmuls for each of four gates.

    An adaptive softmax counts only its head, which every token needs: `V_0 + C`
    entries instead of V. If the embedding has its own size `E`, the projection
    to it adds `2 T D E`, and E replaces D. Tails are left out, because they
    depend on the text, so the count is a lower bound.

    An XLNet counts its content stream with a softmax for every token, but not
    its query stream, which only has the targets.
    """
    backbone = model.backbone
    check_integer("batch_size", batch_size, 1)
    check_integer("segment_length", segment_length, 1)
    layer = backbone.layer_flops(segment_length, backbone.memory_length)
    embedding = backbone.token_embedding
    size = embedding.dims[0]
    softmax = 2 * size * (embedding.cluster_size(0) + len(embedding.cutoffs))
    if embedding.needs_projection(0):
        softmax += 2 * embedding.output_dim * size
    softmax *= segment_length
    forward = batch_size * (backbone.num_layers * layer + softmax)
    return 3 * forward if training else forward


def peak_flops(dtype):
    """Measures the operations per second of the fastest matmul of a dtype."""

    @tf.function
    def multiply(size, num_matmuls):
        # This matrix is its own square, so products neither grow nor vanish,
        # and it is fast to make (random numbers took a third of a trial).
        factor = product = tf.fill((size, size), tf.cast(1 / size, dtype))
        for _ in tf.range(num_matmuls):
            product = tf.matmul(product, factor)
        return tf.cast(product[0, 0], tf.float32)

    def seconds(size, num_matmuls):
        start = time.perf_counter()
        multiply(size, tf.constant(num_matmuls)).numpy()
        return time.perf_counter() - start

    best = 0.0
    for size in _SIZES:
        seconds(size, 1)  # traces
        # Enough that the time of the call and of `tf.fill` is negligible.
        num_matmuls = 1 + int(_SECONDS_PER_TRIAL / seconds(size, 1))
        fastest = min(seconds(size, num_matmuls) for _ in range(_TRIALS))
        best = max(best, 2 * size**3 * num_matmuls / fastest)
        if fastest > num_matmuls * _SECONDS_PER_TRIAL:
            break  # a larger size would take long and not be faster
    return best


def training_bytes(model, optimizer, rows, accumulate_steps=1):
    """Returns the bytes that one replica keeps for training, by kind.

    Activations are not included. The optimizer must be built, and memory has
    `rows` rows. Gradient accumulation keeps a second set of gradients.
    """
    with tf.Graph().as_default():  # it allocates nothing
        memory = model.backbone.memory_stack(rows).state_variables
    return {
        "weights": bytes_of(model.weights),
        "gradients": min(accumulate_steps, 2)
        * bytes_of(model.trainable_variables),
        "optimizer": bytes_of(optimizer.variables),
        "memory": bytes_of(memory),
    }


def device_memory():
    """Returns the memory of this process in bytes."""
    # With GPUs, `in_use` and `peak` of the fullest GPU. Otherwise only `peak`,
    # the largest resident set of the process so far; on Windows neither.
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        infos = [
            tf.config.experimental.get_memory_info(gpu.name) for gpu in gpus
        ]
        return {
            "in_use": max(info["current"] for info in infos),
            "peak": max(info["peak"] for info in infos),
        }
    if resource is None:
        return {}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return {"peak": resident * (1 if sys.platform == "darwin" else 1024)}
