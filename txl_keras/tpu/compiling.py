"""Compiles the function of one replica for a TPU slice, without a TPU.

TensorFlow traces the function as one of many replicas (`OneOfManyReplicas`) and
lowers it to HLO. The TPU compiler of libtpu compiles that in a separate process
(`compiler.py`); nothing is executed. This shows that the compiler accepts the
traced function and how much memory it needs. It does not show that
`TPUStrategy`, which lowers functions in another way, gives the same program.
"""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import keras
import tensorflow as tf

from txl_keras.file_lock import lock
from txl_keras.tpu.cross_replica import OneOfManyReplicas

# Tested together, because private parts of jax are used: see setup.py.
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.51"}
_COMPILER = pathlib.Path(__file__).with_name("compiler.py")
# libtpu must not query the metadata of a TPU or wait for other hosts. XLA_FLAGS
# is cleared because it may hold flags for the CPU of this machine.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
_LOCK = "txl_keras_tpu_compiler.lock"


def check_compiler():
    """Checks that the TPU compiler can run on this machine."""
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise RuntimeError(
            "Compiling for a TPU needs Linux x86_64, the platform of libtpu. "
            f"Received: {machine}"
        )
    check_packages("Compiling for a TPU", '"txl_keras[tpu_compile]"', VERSIONS)


def check_packages(feature, to_install, names):
    """Raises `ImportError` unless packages have the tested `VERSIONS`."""
    found = {name: _version(name) for name in names}
    if any(found[name] != VERSIONS[name] for name in names):
        required = ", ".join(f"{name} {VERSIONS[name]}" for name in names)
        installed = ", ".join(
            f"{name} {v or 'is missing'}" for name, v in found.items()
        )
        raise ImportError(
            f"{feature} needs {required}: pip install {to_install}. "
            f"Received: {installed}"
        )


def _version(package):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)


def versions():
    """Returns the version of each package that decides what is compiled."""
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


def compile_hlo(hlo, slice_, num_replicas):
    """Compiles an HLO module for a `TpuType`; returns facts, or an `error`."""
    # `compiler.py` returns the facts, of which `flops` and `bytes_accessed`
    # count the body of a loop once. `text` is the compiled module.
    with tempfile.TemporaryDirectory() as folder, _one_at_a_time() as held:
        folder = pathlib.Path(folder)
        (folder / "step.hlo").write_bytes(hlo)
        request = {
            "hlo": str(folder / "step.hlo"),
            "text": str(folder / "compiled.txt"),
            "topology": f"{slice_.chip.name}:{slice_.topology}",
            "options": dict(slice_.chip.options),
            "replicas": num_replicas,
        }
        log = folder / "log.txt"
        # -P keeps this folder, whose files shadow other packages, off sys.path.
        command = [sys.executable, "-P", _COMPILER, folder / "answer.json"]
        with log.open("w") as output:
            process = subprocess.run(
                [*command, json.dumps(request)],
                env=os.environ | _ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The child keeps the lock even if this process ends first.
                pass_fds=[held],
            )
        if process.returncode:
            lines = log.read_text(errors="replace").splitlines()
            last = "\n".join(lines[-20:])
            raise RuntimeError(
                f"The TPU compiler ended with {process.returncode}:\n{last}"
            )
        answer = json.loads((folder / "answer.json").read_text())
        if "error" not in answer:
            answer["text"] = (folder / "compiled.txt").read_text()
    return answer


@contextlib.contextmanager
def _one_at_a_time():
    """Yields a lock's descriptor, since only one process may load libtpu."""
    path = os.path.join(tempfile.gettempdir(), _LOCK)
    # First without O_CREAT, which Linux may refuse for another user's file.
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        try:
            lock(descriptor, wait=False, shared_with_children=True)
        except BlockingIOError:
            print("Waiting for another compilation to end.", flush=True)
            lock(descriptor, shared_with_children=True)
        yield descriptor
    finally:
        os.close(descriptor)
