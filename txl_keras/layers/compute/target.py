"""The device that layers are traced for, and how its graph is compiled.

On a TPU or a GPU, XLA compiles a whole step. On a CPU, memory bandwidth is the
bottleneck, so layers use an implementation that moves less data: attention in
blocks of queries, and fused functions between matmuls. The CPU determines which
library should run the matmuls. With the instructions that oneDNN is optimized
for, TensorFlow's matmuls are twice as fast as XLA's in bfloat16. In float32
they are 5 to 10% faster in training, if they are large, and 5% slower in
inference. On other CPUs XLA's are faster, in bfloat16 three times. So a CPU
graph is compiled by XLA as a whole, or in parts: TensorFlow runs the matmuls,
and XLA compiles the fused functions, each once for all layers.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib

from txl_keras.backend import tf

# CPU instructions, by dtype and training. TensorFlow's matmuls are faster if
# the CPU has one of them.
_INSTRUCTIONS = {
    ("float32", True): {"avx512_vnni"},
    ("bfloat16", False): {"avx512_bf16", "amx_bf16"},
    ("bfloat16", True): {"avx512_bf16", "amx_bf16"},
}
# Below this hidden size, float32 training is faster as a whole: 25% at 128.
_SMALLEST_FLOAT32 = 384
_CPU_INFO = pathlib.Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class Target:
    """Describes the device that the traced layers will run on."""

    # "cpu", "gpu", "tpu", or None if unknown, as in eager calls. For None,
    # layers use an implementation that works on all of them.
    device: str | None = None
    # Whether a CPU graph is compiled in parts instead of as a whole by XLA.
    in_parts: bool = False
    # The attention implementation that layers try first, which an extension
    # registered as `"attention"`, or None.
    attention: object = None

    @property
    def is_cpu(self):
        return self.device == "cpu"


_target = Target()


def current():
    """Returns the `Target` of the layers that are being traced."""
    return _target


@contextlib.contextmanager
def use(target):
    """Sets the `Target` for layers traced inside of this context."""
    global _target
    before, _target = _target, target
    try:
        yield
    finally:
        _target = before


def compile_for(target, function, jit_compile=True):
    """Wraps a function of tensors in a `tf.function` traced for a `Target`."""

    def traced(*args):
        with use(target):
            return function(*args)

    # AutoGraph would spend seconds on converting the functions called here.
    return tf.function(
        traced,
        autograph=False,
        jit_compile=(jit_compile and not target.in_parts) or None,
    )


def prefers_tensorflow_matmul(dtype, training, hidden_dim=math.inf):
    """Returns whether TensorFlow's matmuls are known to beat XLA's here."""
    if dtype == "float32" and hidden_dim < _SMALLEST_FLOAT32:
        return False
    needed = _INSTRUCTIONS.get((dtype, training), set())
    return bool(needed & _cpu_flags(_CPU_INFO))


@functools.cache
def _cpu_flags(path):
    """Reads the instruction sets of an x86 CPU from Linux's `/proc/cpuinfo`."""
    if not path.exists():
        return frozenset()
    for line in path.read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() == "flags":
            return frozenset(values.split())
    return frozenset()


def fused(function):
    """Compiles the decorated function with XLA in graphs of several parts."""
    # It must receive all tensors as arguments and use no closures, because it
    # is traced once for all layers that call it with the same shapes.
    compiled = functools.cache(
        lambda: tf.function(function, jit_compile=True, autograph=False)
    )

    @functools.wraps(function)
    def call(*args):
        if _target.in_parts and not tf.executing_eagerly():
            return compiled()(*args)
        return function(*args)

    return call
