"""Distribution strategies, and functions that run on all replicas."""

import json
import os
import zlib

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from txl_keras.checks import check_integer

# Seconds to wait at the start until TensorFlow has connected all workers.
TIMEOUT = 50
# Seconds without a sign of life after which others give up on a worker that
# hangs. A worker that ends is noticed earlier, because its connections close.
_HEARTBEAT_TIMEOUT = 30


def create_strategy(
    tpu: str | None = None, num_cpu_devices: int | None = None
) -> tf.distribute.Strategy:
    """Chooses the `tf.distribute` strategy for this machine.

    Call it before TensorFlow initializes a device. The environment variable
    `TF_CONFIG`, as documented by TensorFlow, describes several workers, each of
    which runs its own copy of the program: `cluster` lists the addresses of all
    `worker`s (and of one `chief`), and `task` tells which worker this process
    is.

    All multi-replica strategies in a process must use the same devices.

    Args:
        tpu: Name or gRPC address of a TPU. `"local"` and the empty string mean
            the TPU of this machine. `None` means no TPU.
        num_cpu_devices: Optional integer. Splits the CPU into that many logical
            devices with one replica each, to try distribution on a laptop.

    Returns:
        `TPUStrategy` for a TPU, `MultiWorkerMirroredStrategy` if `TF_CONFIG`
        lists several workers, `MirroredStrategy` for several GPUs or CPU
        devices, otherwise the default strategy, on one GPU or the CPU.

    Example:

    ```python
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.training import create_strategy

    strategy = create_strategy()
    with strategy.scope():
        model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    ```
    """
    jobs = read_jobs()
    given = {
        "tpu": tpu,
        "num_cpu_devices": num_cpu_devices,
        "TF_CONFIG": jobs or None,
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
    if jobs:
        _bound_waiting(jobs)
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
    # The TPU client raises different errors, by version and cause.
    except Exception as error:
        raise RuntimeError(
            f"The TPU tpu={tpu!r} could not be reached. Check its name and "
            "that it is READY, that this machine is in its project and zone, "
            "and that the TPU build of TensorFlow is installed; leave `--tpu` "
            f"out to run on this machine. TensorFlow's error: {error}"
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
            "and cannot change in a process: start a new process for another "
            f"number. Received: num_cpu_devices={num_cpu_devices}, while "
            f"{len(tf.config.list_logical_devices('CPU'))} are in use"
        ) from error
    if num_cpu_devices == 1 and not tf.config.list_physical_devices("GPU"):
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_cpu_devices)]
    )


def read_jobs():
    """Returns the addresses in TF_CONFIG by job, if there are two or more."""
    text = os.environ.get("TF_CONFIG", "").strip()
    try:
        cluster = json.loads(text or "{}").get("cluster", {})
        # The chief is the first worker under another name.
        jobs = {name: [*cluster.get(name, [])] for name in ("chief", "worker")}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            "TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, '
            '"task": {"type": "worker", "index": 0}}. '
            f"Received: {text} ({type(error).__name__}: {error})"
        ) from error
    jobs = {name: addresses for name, addresses in jobs.items() if addresses}
    return jobs if sum(map(len, jobs.values())) > 1 else {}


def _bound_waiting(jobs):
    """Limits how long TensorFlow waits for a worker that is missing."""
    # By default it waits an hour for workers to connect, and no signal and no
    # other thread can end this wait.
    context = eager_context.context()
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{next(iter(jobs))}/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * TIMEOUT,
        heartbeat_timeout_in_ms=1000 * _HEARTBEAT_TIMEOUT,
        coordinated_jobs=[
            eager_context.coordination_config_pb2.CoordinatedJob(
                name=name, num_tasks=len(job)
            )
            for name, job in jobs.items()
        ],
    )
    # Otherwise the timeout only applies to reaching the first worker.
    context.coordination_service.cluster_register_with_barrier = True


def is_chief(strategy):
    """Returns whether this worker writes the files of a run."""
    return strategy.extended.should_checkpoint


def wait_for_all(strategy):
    """Waits until all workers have called this function."""
    gather_integers(strategy, 0)


def gather_integers(strategy, values):
    """Gathers the integers of R replicas, or of this worker: `(R, ...)`."""
    values = np.array([values], np.int64)
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return values
    return _gather(strategy, tf.constant(values)).numpy()


@tf.function
def _gather(strategy, values):
    of_replicas = strategy.run(tf.identity, args=(values,))
    return strategy.gather(of_replicas, axis=0)


def check_alike(strategy, settings):
    """Checks that all workers were started with the same settings."""
    # Otherwise they would wait for each other at different points.
    hashes = [zlib.crc32(repr(value).encode()) for value in settings.values()]
    of_workers = gather_integers(strategy, hashes)  # [replicas, settings]
    is_other = (of_workers != of_workers[0]).any(axis=0)
    names = [n for n, other in zip(settings, is_other, strict=True) if other]
    if names:
        here = ", ".join(f"{name}={settings[name]}" for name in names)
        raise ValueError(
            f"{', '.join(f'`{n}`' for n in names)} must be the same on all "
            f"workers. Received here: {here}"
        )


def host_loop(strategy, replica_step, rows=()):
    """Returns a function that runs many steps on all replicas in one call."""
    # It returns a dictionary of tensors with one entry per step. `replica_step`
    # takes one element of the data. It returns scalars, which are equal on all
    # replicas, and for the names in `rows` a tensor of each replica's rows.
    names = []  # of the scalars, known once a step was traced

    # Not a `tf.function`: `strategy.run` would compile one graph for all
    # replicas, and XLA could not access the variables of the second replica.
    # Converting takes seconds, and only `run` has a loop over tensors.
    step = tf.autograph.experimental.do_not_convert(replica_step)

    @tf.autograph.experimental.do_not_convert
    def join(values):
        values = {
            name: strategy.experimental_local_results(value)
            for name, value in values.items()
        }
        names[:] = [name for name in values if name not in rows]
        # `Segments.distribute` assigns rows to replicas in this order.
        of_rows = [tf.concat(values[name], 0) for name in rows]
        return [tf.stack([values[name][0] for name in names]), *of_rows]

    # Without `reduce_retracing`, which would drop the static shapes when later
    # data has other sizes.
    @tf.function
    def run(iterator, num_steps):
        results = [
            tf.TensorArray(tf.float32, size=num_steps) for _ in (None, *rows)
        ]
        for i in tf.range(num_steps):
            found = join(strategy.run(step, args=(next(iterator),)))
            results = [
                array.write(i, value)
                for array, value in zip(results, found, strict=True)
            ]
        scalars, *of_rows = (array.stack() for array in results)
        scalars = tf.unstack(scalars, len(names), 1)
        return dict(zip((*names, *rows), (*scalars, *of_rows), strict=True))

    return run
