"""What a step runs on and who compiles it: the one context of `compute`.

A TPU or a GPU runs what XLA made of a whole step. A CPU is slowed down by
memory, and layers have a form for it that moves less of it: attention by
blocks of queries, and fused functions for what lies between products of
matrices. Who multiplies depends on the CPU. Where oneDNN is at home,
TensorFlow's products are twice as fast as XLA's in bfloat16; in float32 they
are a twentieth faster where there are gradients, and a twentieth slower where
there are none. Elsewhere XLA's are faster, in bfloat16 three times. So a graph
for a CPU is compiled either whole, or in parts: TensorFlow's products, and XLA
compiles the fused functions, each once for all layers.
"""

import contextlib
import dataclasses
import functools
import pathlib

import tensorflow as tf

# What a CPU must have, one of these, for products of a dtype by TensorFlow,
# in inference and in training.
_INSTRUCTIONS = {
    ("float32", True): {"avx512_vnni"},
    ("bfloat16", False): {"avx512_bf16", "amx_bf16"},
    ("bfloat16", True): {"avx512_bf16", "amx_bf16"},
}
_CPU_INFO = pathlib.Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class Target:
    """What the layers that are traced will run on.

    Attributes:
        device: `"cpu"`, `"gpu"`, `"tpu"`, or `None` where nobody said, as in
            eager calls: layers then take the form that suits all.
        in_parts: Boolean, of a CPU: whether the graph is compiled in parts,
            rather than by XLA as a whole.
        kernel: Boolean: whether attention may be the kernel for TPUs. On a
            CPU it is interpreted, slowly, to see what it computes.
    """

    device: str | None = None
    in_parts: bool = False
    kernel: bool = False

    @property
    def is_cpu(self):
        return self.device == "cpu"


_target = Target()


def current():
    """The `Target` of the layers that are called now."""
    return _target


@contextlib.contextmanager
def use(target):
    """Where layers are traced for a `Target`."""
    global _target
    before, _target = _target, target
    try:
        yield
    finally:
        _target = before


def compile_for(target, function, jit_compile=True):
    """Makes a graph of a function whose layers take the form for a target.

    Args:
        target: `Target`.
        function: Function of tensors, with static shapes.
        jit_compile: Boolean, whether XLA compiles what is not in parts.

    Returns:
        `tf.function`.
    """

    def traced(*args):
        with use(target):
            return function(*args)

    # Without AutoGraph, which would look for Python's `if` on tensors, in all
    # functions that are called from here, for seconds.
    return tf.function(
        traced,
        autograph=False,
        jit_compile=(jit_compile and not target.in_parts) or None,
    )


def multiplies_in_parts(dtype, training):
    """Whether TensorFlow's products are faster on this CPU than XLA's.

    Args:
        dtype: String, such as `"float32"`.
        training: Boolean, whether gradients are computed too.

    Returns:
        Boolean. False where nothing is known of the CPU.
    """
    needed = _INSTRUCTIONS.get((dtype, training), set())
    return bool(needed & _cpu_flags())


@functools.cache
def _cpu_flags():
    """What Linux says an x86 processor can do."""
    if not _CPU_INFO.exists():
        return frozenset()
    for line in _CPU_INFO.read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() == "flags":
            return frozenset(values.split())
    return frozenset()


def fused(function):
    """Lets XLA compile a function where graphs are compiled in parts.

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
        if _target.in_parts and not tf.executing_eagerly():
            return compiled(*args)
        return function(*args)

    return call
