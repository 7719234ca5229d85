"""Where a model runs, and how one function runs there step after step."""

import contextlib
import functools
import json
import os
import socket
import time
import zlib

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import compile_for
from txl_keras.layers.compute.target import current
from txl_keras.layers.compute.target import prefers_tensorflow_matmul
from txl_keras.layers.compute.target import use

WORKER_TIMEOUT = 50  # seconds


def create_strategy(tpu=None, num_cpu_devices=None):
    """Chooses the `tf.distribute` strategy for this machine.

    Must be called before TensorFlow touches a device. Several workers, each
    with its own copy of the program, are described by the environment variable
    `TF_CONFIG`, as TensorFlow documents it; its `cluster` has the addresses of
    all `worker`s (and of one `chief`), its `task` is this one.

    All multi-replica strategies of one process must be of the same devices:
    TensorFlow numbers the groups of devices of each from 1, and aborts all
    collectives where two groups of one number differ.

    Args:
        tpu: Name or gRPC address of a TPU. `"local"` and the empty string
            mean the TPU of this machine. `None` means no TPU.
        num_cpu_devices: Optional integer. Splits the CPU into that many
            logical devices, one replica each, to try distribution on a
            laptop.

    Returns:
        `TPUStrategy` for a TPU, `MultiWorkerMirroredStrategy` where
        `TF_CONFIG` names several workers, `MirroredStrategy` for several GPUs
        or CPU devices, else the default strategy: one GPU where there is one,
        or the CPU.

    Raises:
        ValueError: If two of these are given at once, `num_cpu_devices < 1`,
            or `TF_CONFIG` is not what TensorFlow documents.
        RuntimeError: If the TPU cannot be reached, a worker does not come
            within `WORKER_TIMEOUT` seconds, or the CPU cannot be split any
            more.
    """
    workers, index = _workers()
    given = {
        "tpu": tpu,
        "num_cpu_devices": num_cpu_devices,
        "TF_CONFIG": workers or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        raise ValueError(
            "`tpu`, `num_cpu_devices` and several workers in TF_CONFIG exclude "
            "each other. Received: "
            + ", ".join(f"{name}={value!r}" for name, value in given.items())
        )
    if tpu is not None:
        return _tpu_strategy(tpu)
    if num_cpu_devices is not None:
        return _cpu_strategy(num_cpu_devices)
    if workers:
        _meet_workers(workers, index)
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    return tf.distribute.get_strategy()


def _tpu_strategy(tpu):
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        if tpu not in ("", "local"):
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # What the TPU client raises differs by version and by what is missing.
    except Exception as error:
        raise RuntimeError(
            f"The TPU tpu={tpu!r} could not be reached. Check its name and "
            "that it is READY, that this machine is in its project and zone, "
            "and that the TPU build of TensorFlow is installed; leave `--tpu` "
            f"out to run on this machine. TensorFlow said: {error}"
        ) from error


def _cpu_strategy(num_cpu_devices):
    check_integer("num_cpu_devices", num_cpu_devices, 1)
    try:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * num_cpu_devices,
        )
    except RuntimeError as error:
        raise RuntimeError(
            "`num_cpu_devices` must be given before TensorFlow uses a device, "
            "and stay the same in one process: start a new process for another "
            f"number. Received: num_cpu_devices={num_cpu_devices}, while "
            f"{len(tf.config.list_logical_devices('CPU'))} are in use"
        ) from error
    if num_cpu_devices == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_cpu_devices)]
    )


def _workers():
    """Addresses of all workers in TF_CONFIG, and which of them this is."""
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return [], 0
    try:
        config = json.loads(text)
        cluster = config["cluster"]
        chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
        if set(cluster) - {"chief", "worker"}:
            raise ValueError("the only jobs are chief and worker")
        addresses = [*chiefs, *workers]
        for address in addresses:
            _host_and_port(address)
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address comes twice")
        task = config["task"]
        # A chief is the first worker by another name.
        index = addresses.index(cluster[task["type"]][task["index"]])
    # Whatever else it may hold: a list, a number, an index out of range.
    except Exception as error:
        raise ValueError(
            "TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, '
            '"task": {"type": "worker", "index": 0}}. '
            f"Received: {text} ({type(error).__name__}: {error})"
        ) from error
    return (addresses if len(addresses) > 1 else []), index


def _host_and_port(address):
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def _meet_workers(workers, index):
    """Waits until all workers answer: TensorFlow would wait without end.

    Until TensorFlow's own server takes over, each worker listens at its port.
    """
    _, port = _host_and_port(workers[index])
    missing = [w for i, w in enumerate(workers) if i != index]
    deadline = time.monotonic() + WORKER_TIMEOUT
    try:
        listener = socket.create_server(("", port), backlog=len(workers))
    except OSError as error:
        raise RuntimeError(
            f"Worker {index} of TF_CONFIG cannot listen at port {port} of "
            f"{workers[index]}: {error}"
        ) from error
    with listener:
        while missing and time.monotonic() < deadline:
            missing = [w for w in missing if not _answers(w)]
            if missing:
                time.sleep(0.2)
    if missing:
        raise RuntimeError(
            f"These workers of TF_CONFIG did not answer within "
            f"{WORKER_TIMEOUT} seconds: {', '.join(missing)}. Start the same "
            "command on every worker, each with its own task in TF_CONFIG, "
            f"and let them reach each other. This is worker {index}, "
            f"{workers[index]}."
        )


def _answers(address):
    with contextlib.suppress(OSError):
        socket.create_connection(_host_and_port(address), timeout=2).close()
        return True
    return False


def is_chief(strategy):
    """Whether this worker writes the files of a run.

    Args:
        strategy: The `tf.distribute.Strategy`.

    Returns:
        Boolean, true for one worker; always true where there is but one.
    """
    return strategy.extended.should_checkpoint


def wait_for_all(strategy):
    """Returns when all workers have come here.

    Args:
        strategy: The `tf.distribute.Strategy`.
    """

    gather_integers(strategy, lambda: tf.constant(0, tf.int64))


def gather_integers(strategy, value):
    """What all replicas say, where there are other workers to say it.

    Args:
        strategy: The `tf.distribute.Strategy`.
        value: Function that returns an int64 tensor of one shape `(...)`.

    Returns:
        Array `(R, ...)` of R replicas; without other workers R is 1.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return value().numpy()[None]

    @tf.function
    def gather():
        return strategy.gather(strategy.run(lambda: value()[None]), axis=0)

    return gather().numpy()


def check_alike(strategy, settings):
    """Sees that all workers were started alike.

    Otherwise they would wait for each other at different places.

    Args:
        strategy: The `tf.distribute.Strategy`.
        settings: Dictionary, of the same keys on all workers.

    Raises:
        ValueError: If a value is another on another worker.
    """
    hashes = [zlib.crc32(repr(value).encode()) for value in settings.values()]
    of_workers = gather_integers(
        strategy, lambda: tf.constant(hashes, tf.int64)
    )  # [replicas, settings]
    is_other = (of_workers != of_workers[0]).any(axis=0)
    names = [n for n, other in zip(settings, is_other, strict=True) if other]
    if names:
        here = ", ".join(f"{name}={settings[name]}" for name in names)
        raise ValueError(
            f"{', '.join(f'`{n}`' for n in names)} must be the same on all "
            f"workers. Received here: {here}"
        )


def describe(strategy):
    """Replicas and devices in words, such as "2 x GPU".

    Args:
        strategy: The `tf.distribute.Strategy`.

    Returns:
        String.
    """
    replicas = strategy.num_replicas_in_sync
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return f"{replicas} x TPU core"
    device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        # On a machine with GPUs the CPU may be split all the same.
        device = strategy.extended.worker_devices[0].split(":")[-2]
    return f"{replicas} x {device}"


def device_of(strategy):
    """What the replicas of a strategy are.

    Args:
        strategy: The `tf.distribute.Strategy`.

    Returns:
        `"cpu"`, `"gpu"` or `"tpu"`; inside of `for_another_device` always
        the last.
    """
    if current().device == "tpu":
        return "tpu"
    device = describe(strategy).split()[-1].lower()
    return "tpu" if device == "core" else device


def for_another_device():
    """Where steps are built on a CPU, but will run on a TPU."""
    return use(Target("tpu"))


def compile_layers(
    function, strategy, model, training, in_parts=True, kernel=False
):
    """Compiles what passes through a model's layers, in the device's way.

    Args:
        function: Function of tensors, with static shapes; what one replica
            does between collectives.
        strategy: The `tf.distribute.Strategy`.
        model: The model, of any class of `txl_keras.models`.
        training: Boolean, whether it computes gradients.
        in_parts: Boolean, whether it may be compiled in parts on a CPU where
            that is faster: see `txl_keras.layers.compute.target`.
        kernel: Boolean, whether attention is the kernel for TPUs.

    Returns:
        `tf.function`.

    Raises:
        ValueError: If that kernel is to run on a GPU.
    """
    device = device_of(strategy)
    if kernel and device == "gpu":
        raise ValueError(
            "`attention_kernel` is one for TPUs. Received: "
            f"{describe(strategy)}"
        )
    in_parts = (
        in_parts
        and device == "cpu"
        # Others have no parts: the loops of an LSTM would not be compiled.
        and model.backbone.has_parts
        and prefers_tensorflow_matmul(model.compute_dtype, training)
    )
    # `TPUStrategy` compiles whole steps by itself.
    jit_compile = not isinstance(strategy, tf.distribute.TPUStrategy)
    return compile_for(Target(device, in_parts, kernel), function, jit_compile)


def compile_replica_function(function, strategy):
    """Compiles by XLA what one replica does between collectives.

    Args:
        function: Function of tensors, with static shapes.
        strategy: The `tf.distribute.Strategy`. `TPUStrategy` compiles whole
            steps by itself.

    Returns:
        `tf.function`.
    """
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return tf.function(function, jit_compile=None if is_tpu else True)


def host_loop(strategy, replica_step, names, stop):
    """Runs a step many times on all replicas, in one call from Python.

    Args:
        strategy: The `tf.distribute.Strategy`.
        replica_step: Function of one element of the data and of the value of
            `stop` on this worker. It returns a dictionary of float32 scalars
            that are the same on all replicas. `stop` among them is the sum
            over replicas: where it is not 0, all workers end the loop after
            this step.
        names: The other keys of that dictionary.
        stop: `StopRequest.variable`.

    Returns:
        Function `(iterator, num_steps)`, which returns a dictionary of float32
        vectors, step by step, of `num_steps` or fewer if stopped: `names` and
        `stop`. It raises `RuntimeError` if a strategy of other devices was
        used in this process. Its `__wrapped__` is a `tf.function`.
    """
    names = ("stop", *names)

    # A plain function: of a `tf.function`, `strategy.run` would compile one
    # graph for all replicas, and XLA cannot reach the variables of the second.
    def step(*args):
        return replica_step(*args)

    @tf.function(reduce_retracing=True)
    def run(iterator, num_steps):
        results = tf.TensorArray(
            tf.float32, size=num_steps, element_shape=(len(names),)
        )
        done, stopped = 0, False
        while done < num_steps and not stopped:
            values = strategy.run(
                step, args=(next(iterator), stop.read_value())
            )
            first = {
                name: strategy.experimental_local_results(values[name])[0]
                for name in names
            }
            results = results.write(done, tf.stack(list(first.values())))
            stopped = first["stop"] > 0
            done += 1
        # [num_steps, names] -> a vector a name
        steps = results.stack()[:done]
        return dict(zip(names, tf.unstack(steps, len(names), 1), strict=True))

    @functools.wraps(run, updated=())
    def run_alone(iterator, num_steps):
        try:
            return run(iterator, num_steps)
        except tf.errors.InternalError as error:
            if "joining a group" not in error.message:
                raise
            raise RuntimeError(
                "All strategies of several replicas in one process must be of "
                f"the same devices. This one, of {describe(strategy)}, or one "
                "before it was of others, and TensorFlow runs none of them any "
                "more: start a new process for each number of replicas."
            ) from error

    return run_alone
