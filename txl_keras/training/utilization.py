"""How much of a machine a run uses.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size, `D` hidden size, `F` inner size of the feed-forward networks, `V`
vocabulary, `L` layers, `C` clusters after the first.
"""

import resource
import sys
import time

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.training.host_memory import host_memory_of

# From what a CPU does in milliseconds to what keeps an accelerator busy.
_SIZES = (512, 1024, 2048, 4096, 8192)
_SECONDS_OF_A_TRIAL = 0.04
_TRIALS = 5


def model_flops(
    model, batch_size, segment_length, memory_length=None, training=False
):
    """Floating-point operations of a step, counted nominally.

    A multiplication and an addition are two. A layer and row counts

        4 T D NH    queries and output
        4 S D NH    keys and values, of memory too
        4 T D F     feed-forward
        6 T S NH    content scores, position scores, weighted sum

    and the softmax `2 T D V`. Attention without position scores
    (`"vaswani"`, `"al_rfou"`) has `4 T S NH`. What the causal mask shuts
    counts, look-ups, norms and the projection of positions, made once for
    all rows, do not. Backward is twice as much as forward. A layer of an LSTM
    counts `16 T D D`, four gates of two products.

    Of an adaptive softmax only what every token needs counts, the head: its
    `V_0 + C` entries in the place of V, and where the embedding has a size
    `E` of its own, `2 T D E` to get there and E in the place of D. So the
    count is a lower bound, by the tails that a text happens to need.

    Of an XLNet the content stream counts, with a softmax for every token: its
    query stream, of the targets alone, is left out.

    Args:
        model: `TransformerXLCausalLM` or `XLNetPermutationLM`.
        batch_size: Integer `B`.
        segment_length: Integer `T`.
        memory_length: Integer `M`; by default the model's own.
        training: Boolean, count backward too.

    Returns:
        Integer.

    Raises:
        ValueError: On sizes that are no integers or too small.

    Example:

    >>> from txl_keras.models import TransformerXLCausalLM
    >>> model = TransformerXLCausalLM.from_preset("quickstart")
    >>> forward = model_flops(model, batch_size=16, segment_length=128)
    >>> model_flops(model, 16, 128, training=True) // forward
    3
    """
    backbone = model.backbone
    if memory_length is None:
        memory_length = backbone.memory_length
    check_integer("batch_size", batch_size, 1)
    check_integer("segment_length", segment_length, 1)
    check_integer("memory_length", memory_length, 0)
    layer = backbone.layer_flops(segment_length, memory_length)
    softmax = segment_length * _softmax_flops(backbone.token_embedding)
    forward = batch_size * (backbone.num_layers * layer + softmax)
    return 3 * forward if training else forward


def _softmax_flops(embedding):
    """Of one token: the projection, where there is one, and the head."""
    size = embedding.dims[0]
    entries = embedding.cluster_size(0) + len(embedding.cutoffs)
    flops = 2 * size * entries
    if embedding.needs_projection(0):
        flops += 2 * embedding.output_dim * size
    return flops


def peak_flops(dtype, strategy):
    """Operations a second of the best matrix product of a precision.

    Measured here and now, on all replicas at once: so logical devices that
    share one CPU add up to that CPU. Takes about a second on a small CPU.

    Args:
        dtype: String, `"float32"`, `"bfloat16"` or `"float16"`.
        strategy: The `tf.distribute.Strategy`.

    Returns:
        Float, the sum over all replicas.

    Example:

    ```python
    import tensorflow as tf
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.training.utilization import model_flops, peak_flops

    model = TransformerXLCausalLM.from_preset("quickstart")
    seconds = 0.5  # of a step, as measured
    flops = model_flops(model, 16, 128, training=True) / seconds
    utilization = flops / peak_flops("float32", tf.distribute.get_strategy())
    ```
    """

    multiply = _multiply_on_all_replicas(dtype, strategy)
    best = 0.0
    for size in _SIZES:
        _seconds(multiply, size, 1)  # traces
        # So many that the call and making the factor hardly count.
        num_products = 1 + int(
            _SECONDS_OF_A_TRIAL / _seconds(multiply, size, 1)
        )
        fastest = min(
            _seconds(multiply, size, num_products) for _ in range(_TRIALS)
        )
        best = max(best, 2 * size**3 * num_products / fastest)
        if fastest > num_products * _SECONDS_OF_A_TRIAL:
            break  # a larger one would take long and be no faster
    return best * strategy.num_replicas_in_sync


def _multiply_on_all_replicas(dtype, strategy):
    """`tf.function(size, num_products)`; its result is there when all is."""

    def multiply(size, num_products):
        # All alike, it is its own square: products neither grow nor vanish,
        # and it is made in no time (random numbers took a third of a trial).
        factor = product = tf.fill((size, size), tf.cast(1 / size, dtype))
        for _ in tf.range(num_products):
            product = tf.matmul(product, factor)
        return tf.cast(product[0, 0], tf.float32)

    @tf.function
    def on_all_replicas(size, num_products):
        shares = strategy.run(multiply, args=(size, num_products))
        return strategy.reduce("SUM", shares, axis=None)

    return on_all_replicas


def _seconds(multiply, size, num_products):
    start = time.perf_counter()
    multiply(size, tf.constant(num_products)).numpy()
    return time.perf_counter() - start


def device_memory():
    """Memory that this process takes, in bytes.

    Returns:
        Dictionary. With GPUs, `in_use` and `peak` of the fullest one; without
        `peak` alone, the largest resident set of the process so far.

    Example:

    >>> device_memory()["peak"] > 0
    True
    """
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        infos = [
            tf.config.experimental.get_memory_info(gpu.name) for gpu in gpus
        ]
        return {
            "in_use": max(info["current"] for info in infos),
            "peak": max(info["peak"] for info in infos),
        }
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return {"peak": resident * (1 if sys.platform == "darwin" else 1024)}


def memory_of(call):
    """How much more memory a call takes, at its peak, than was held before.

    Args:
        call: Function without arguments.

    Returns:
        Integer, bytes of the device where it is most, as TensorFlow counts
        them: in chunks of its allocator, of which a large one may be twice as
        large as what is in it. For most CPUs it does not count: then see
        `host_memory_of`.

    Example:

    >>> memory_of(lambda: tf.zeros((1000, 1000)).numpy()) >= 0
    True
    """
    devices = [
        device.name
        for device in tf.config.list_logical_devices("GPU")
        or tf.config.list_logical_devices("CPU")
    ]
    info = tf.config.experimental.get_memory_info
    try:
        before = [info(device)["current"] for device in devices]
    except ValueError:
        # Only the allocator that comes with oneDNN counts; it keeps all that
        # it ever got, so that the process as a whole says nothing.
        return host_memory_of(call)
    for device in devices:
        tf.config.experimental.reset_memory_stats(device)
    call()
    return max(
        info(device)["peak"] - held
        for device, held in zip(devices, before, strict=True)
    )
