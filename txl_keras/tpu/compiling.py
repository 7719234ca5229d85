"""Lowers functions, and compiles them for a TPU slice, without a TPU.

The TPU compiler of libtpu compiles HLO in a separate process (`compiler.py`);
nothing is executed. This shows that the compiler accepts the traced function
and how much memory it needs. It does not show that `TPUStrategy`, which lowers
functions in another way, gives the same program.
"""

import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

# Tested together, because private parts of jax are used: see setup.py.
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.51"}
_COMPILER = pathlib.Path(__file__).with_name("compiler.py")
# libtpu must not query the metadata of a TPU, wait for other hosts, or refuse
# to be loaded twice. XLA_FLAGS may hold flags for the CPU of this machine.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def check_packages(
    feature="Compiling for a TPU",
    to_install='"txl_keras[tpu_compile]" (Linux x86_64 only)',
    names=tuple(VERSIONS),
):
    """Raises `ImportError` unless packages have the tested `VERSIONS`."""
    found = {name: _version(name) for name in names}
    needed = {name: VERSIONS[name] for name in names}
    if found != needed:
        raise ImportError(
            f"{feature} needs {needed}: pip install {to_install}. Received: "
            f"{found}"
        )


def _version(package):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)


def versions():
    """Returns versions of the packages that determine the compiled program."""
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        **VERSIONS,
    }


def lower(function, arguments, num_replicas):
    """Lowers a function of one of many replicas to a serialized HLO module."""
    # Only the shapes and dtypes of the arguments matter.
    # A new `tf.function`: a trace made outside of the context would be reused.
    step = tf.function(lambda *args: function(*args), jit_compile=True)
    with tf.device("CPU:0"), OneOfManyReplicas(num_replicas):
        compiler_ir = step.experimental_get_compiler_ir(*arguments)
        # HLO lowered for a GPU would call libraries of the GPU.
        return compiler_ir(stage="hlo_serialized", platform_name="CPU")


class OneOfManyReplicas(tf.distribute.ReplicaContext):
    """Traces the function of one replica as a part of a larger TPU slice."""

    # `all_reduce` lowers to XLA's all-reduce over all `num_replicas`. Functions
    # traced in this context are for compiling only; they cannot run here.

    def __init__(self, num_replicas):
        super().__init__(tf.distribute.get_strategy(), 0)
        self._num_replicas = num_replicas

    @property
    def num_replicas_in_sync(self):
        return self._num_replicas

    @property
    def replica_id_in_sync_group(self):
        """Returns an int32 scalar that XLA sets to the id of each replica."""
        return tf.cast(gen_xla_ops.xla_replica_id(), tf.int32)

    def all_reduce(self, reduce_op, value, options=None):
        """Returns the sum over all replicas of every tensor in `value`."""
        assert reduce_op == "SUM"
        add_up = functools.partial(
            gen_xla_ops.xla_all_reduce,
            group_assignment=[list(range(self._num_replicas))],
            reduce_op="Add",
            mode="CrossReplica",
        )
        return tf.nest.map_structure(add_up, value)


def compile_hlo(hlo, slice_, num_replicas):
    """Compiles an HLO module for a `TpuType`; returns facts, or an `error`."""
    # `flops` and `bytes_accessed` count the body of a loop once. `text` is the
    # compiled module.
    request = {
        "topology": f"{slice_.chip.name}:{slice_.topology}",
        "options": dict(slice_.chip.options),
        "replicas": num_replicas,
    }
    # -P keeps this folder, whose files shadow other packages, off sys.path.
    done = subprocess.run(
        [sys.executable, "-P", _COMPILER, json.dumps(request)],
        input=hlo,
        env=os.environ | _ENVIRONMENT,
        capture_output=True,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        last = "\n".join(lines[-20:])
        raise RuntimeError(
            f"The TPU compiler ended with {done.returncode}:\n{last}"
        )
    return json.loads(done.stdout.splitlines()[-1])
