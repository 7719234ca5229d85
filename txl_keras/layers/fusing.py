"""How the steps of a layer are put together on this kind of device.

TPUs, and GPUs, run a training step that XLA compiled as a whole. On a CPU
XLA's matrix products are the slower ones (half as fast in bfloat16), and it
takes a minute to compile the step of a deep model. There a step is a plain
graph of TensorFlow's products, and XLA compiles what lies between them: small
functions, each once for all layers, which TensorFlow alone would do in many
passes over memory.
"""

import contextlib
import functools

import tensorflow as tf

_is_whole = False


@contextlib.contextmanager
def compiled_whole():
    """What is traced inside is compiled by XLA in one piece, for another
    device than those of this machine.
    """
    global _is_whole
    before, _is_whole = _is_whole, True
    try:
        yield
    finally:
        _is_whole = before


def is_compiled_whole():
    """Whether training steps are compiled by XLA in one piece.

    Returns:
        Boolean: true for a TPU, where there is a GPU, and inside of
        `compiled_whole`.
    """
    return (
        _is_whole
        or isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
        or bool(tf.config.list_logical_devices("GPU"))
    )


def fused(function):
    """Lets XLA compile a function of tensors where graphs are built.

    Eager calls stay eager: they would compile for each new shape.

    Args:
        function: Function of tensors and of hashable Python values. It must
            get all it needs as arguments, since it is traced once for all
            layers that call it with the same shapes.

    Returns:
        Function of the same arguments.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*args):
        if tf.executing_eagerly() or is_compiled_whole():
            return function(*args)
        return compiled(*args)

    return call
