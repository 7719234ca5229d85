"""Where a model runs, and how one function runs there step after step."""

import tensorflow as tf

from txl_keras.checks import check_integer


def create_strategy(tpu=None, num_cpu_devices=None):
    """Chooses the `tf.distribute` strategy for this machine.

    Must be called before TensorFlow touches a device.

    Args:
        tpu: Name or gRPC address of a TPU. `"local"` and the empty string
            mean the TPU of this machine. `None` means no TPU.
        num_cpu_devices: Optional integer. Splits the CPU into that many
            logical devices, one replica each, to try distribution on a
            laptop.

    Returns:
        `TPUStrategy` for a TPU, `MirroredStrategy` for several GPUs or CPU
        devices, else the default strategy: one GPU where there is one, or
        the CPU.

    Raises:
        ValueError: If both arguments are given, or `num_cpu_devices < 1`.
        RuntimeError: If the TPU cannot be reached.
    """
    if tpu is not None and num_cpu_devices is not None:
        raise ValueError(
            "`tpu` and `num_cpu_devices` exclude each other. Received: "
            f"tpu={tpu!r}, num_cpu_devices={num_cpu_devices}"
        )
    if tpu is not None:
        return _tpu_strategy(tpu)
    if num_cpu_devices is not None:
        return _cpu_strategy(num_cpu_devices)
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
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * num_cpu_devices,
    )
    if num_cpu_devices == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_cpu_devices)]
    )


def describe(strategy):
    """Replicas and devices in words, such as "2 x GPU".

    Args:
        strategy: The `tf.distribute.Strategy`.

    Returns:
        String.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        device = "TPU core"
    else:
        device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return f"{strategy.num_replicas_in_sync} x {device}"


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


def host_loop(strategy, replica_step, names):
    """Runs a step many times on all replicas, in one call from Python.

    Args:
        strategy: The `tf.distribute.Strategy`.
        replica_step: Function of one element of the data that returns a
            dictionary of scalars, one replica's share of each.
        names: The keys of that dictionary.

    Returns:
        `tf.function(iterator, num_steps)`, which returns a dictionary of
        float32 vectors of `num_steps`: the sums over replicas, step by step.
    """

    # A plain function: of a `tf.function`, `strategy.run` would compile one
    # graph for all replicas, and XLA cannot reach the variables of the second.
    def step(element):
        return replica_step(element)

    @tf.function(reduce_retracing=True)
    def run(iterator, num_steps):
        results = tf.TensorArray(tf.float32, size=num_steps)
        for i in tf.range(num_steps):
            shares = strategy.run(step, args=(next(iterator),))
            sums = [
                strategy.reduce("SUM", shares[name], axis=None)
                for name in names
            ]
            results = results.write(i, tf.stack(sums))
        # [num_steps, names] -> a vector a name
        return dict(
            zip(names, tf.unstack(results.stack(), len(names), 1), strict=True)
        )

    return run
