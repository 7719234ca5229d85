"""Compiles what a replica runs for a TPU slice, on a machine without one.

TensorFlow traces the function, as one of many replicas (`OneOfManyReplicas`),
and lowers it to HLO; the TPU compiler of libtpu compiles that, in a process
of its own (`compiler.py`). Nothing is executed. So it shows that the
compiler takes what was traced and how much memory that needs; not that
`TPUStrategy`, which lowers by a bridge of its own, does the same.
"""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import tensorflow as tf

from txl_keras.tpu.cross_replica import OneOfManyReplicas
from txl_keras.tpu.static_checks import check_static

# Seen to work together, with private parts of jax: see setup.py.
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.51"}
_COMPILER = pathlib.Path(__file__).with_name("compiler.py")
# There is no TPU to ask what it is, and no other host. XLA_FLAGS may hold what
# is meant for this machine.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
_LOCK = "txl_keras_tpu_compiler.lock"


def check_compiler():
    """Sees that the TPU compiler can run here.

    Raises:
        RuntimeError: If this is not Linux on x86-64.
        ImportError: If jax or libtpu is missing, or of a version that was not
            tried.
    """
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise RuntimeError(
            "Compiling for a TPU needs Linux x86_64, where libtpu is. "
            f"Received: {machine}"
        )
    check_packages("Compiling for a TPU", '"txl_keras[tpu_compile]"', VERSIONS)


def check_packages(what, to_install, names):
    """Sees that packages are there, in the versions that were tried.

    Args:
        what: String, what needs them.
        to_install: String, what pip is to install.
        names: Those of `VERSIONS` that it needs.

    Raises:
        ImportError: If one is missing, or of another version.
    """
    found = {name: _version(name) for name in names}
    if any(found[name] != VERSIONS[name] for name in names):
        wanted = ", ".join(f"{name} {VERSIONS[name]}" for name in names)
        here = ", ".join(
            f"{name} {v or 'is missing'}" for name, v in found.items()
        )
        raise ImportError(
            f"{what} needs {wanted}: pip install {to_install}. Received: {here}"
        )


def _version(package):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)


def lower(function, arguments, num_replicas):
    """Traces a function of one of many replicas, and lowers it to HLO.

    Args:
        function: Function of tensors.
        arguments: Its arguments; only their shapes and dtypes count.
        num_replicas: Integer, of the slice.

    Returns:
        Bytes, a serialized HLO module.

    Raises:
        ValueError: If the function cannot be compiled for a TPU: see
            `check_static`.
    """
    # A function of its own: one traced outside of the context would be reused.
    step = tf.function(lambda *args: function(*args), jit_compile=True)
    with tf.device("CPU:0"), OneOfManyReplicas(num_replicas):
        check_static(step.get_concrete_function(*arguments))
        compiler_ir = step.experimental_get_compiler_ir(*arguments)
        # For a GPU it would be other HLO, with calls of the GPU's libraries.
        return compiler_ir(stage="hlo_serialized", platform_name="CPU")


def compile_hlo(hlo, slice_, num_replicas):
    """Compiles an HLO module for the chips of a slice.

    One at a time on a machine: others wait.

    Args:
        hlo: Bytes, of `lower`.
        slice_: `TpuType`.
        num_replicas: Integer, how many replicas run the module: those of
            the slice, or 1.

    Returns:
        Dictionary: `device`, `seconds`; bytes of `arguments`, `outputs`,
        `aliased`, `temporaries` and `code`; `flops` and `bytes_accessed`, a
        body of a loop counted once; `text`, the compiled module. Or the only
        key `error`, what the compiler said.

    Raises:
        RuntimeError, ImportError: See `check_compiler`; RuntimeError too if
            the compiler crashes.
    """
    check_compiler()
    with tempfile.TemporaryDirectory() as folder, _one_at_a_time() as lock:
        folder = pathlib.Path(folder)
        (folder / "step.hlo").write_bytes(hlo)
        request = {
            "output": str(folder / "answer.json"),
            "module": {
                "hlo": str(folder / "step.hlo"),
                "text": str(folder / "compiled.txt"),
                "topology": f"{slice_.chip.name}:{slice_.topology}",
                "options": dict(slice_.chip.options),
                "replicas": num_replicas,
            },
        }
        (folder / "request.json").write_text(json.dumps(request))
        _run_compiler(folder, lock)
        answer = json.loads((folder / "answer.json").read_text())
        if "error" not in answer:
            answer["text"] = (folder / "compiled.txt").read_text()
    return answer


def _run_compiler(folder, lock):
    log = folder / "log.txt"
    # -P: this folder has files with names of other packages.
    command = [sys.executable, "-P", _COMPILER, folder / "request.json"]
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            env=os.environ | _ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            # It holds the lock as long as it lives, even if this process ends.
            pass_fds=[lock],
        ) as process,
    ):
        try:
            process.wait()
        finally:
            process.kill()  # does nothing to one that ended
    if process.returncode:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(
            f"The TPU compiler ended with {process.returncode}:\n{last}"
        )


@contextlib.contextmanager
def _one_at_a_time():
    """Yields a lock's descriptor: libtpu aborts where another loaded it."""
    path = os.path.join(tempfile.gettempdir(), _LOCK)
    # First without O_CREAT, which Linux refuses for a file of another user.
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another compilation to end.", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
