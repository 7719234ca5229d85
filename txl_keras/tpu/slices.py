"""TPU slices by the names that gcloud gives them, and what their chips do."""

import dataclasses

from txl_keras.data.step_batches import replica_batch_size

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation of chips; numbers of a whole chip.

    Attributes:
        name: String, as in the names of topologies.
        cores: Integer, replicas of `TPUStrategy` on a chip: the two cores of
            v2 and v3 are two, those of v4 and v5p work as one.
        hbm_bytes: Integer, memory, as Google publishes it.
        usable_bytes: Integer, what the compiler gives a program of it. The
            pinned one says so when a program needs more.
        flops: Float, bfloat16 operations a second, as published.
        bytes_per_second: Float, of memory, as published.
        options: Pairs for the compiler. Without `megacore` it takes the two
            cores of a v4 chip for two devices with half of its memory each.
    """

    name: str
    cores: int
    hbm_bytes: int
    usable_bytes: int
    flops: float
    bytes_per_second: float
    options: tuple = ()


_MEGACORE = (("chip_config_name", "megacore"),)
_CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v2", 2, 16 * _GIB, int(14.96 * _GIB), 45e12, 700e9),
        Chip("v3", 2, 32 * _GIB, int(30.96 * _GIB), 123e12, 900e9),
        Chip("v4", 1, 32 * _GIB, int(30.75 * _GIB), 275e12, 1228e9, _MEGACORE),
        Chip("v5e", 1, 16 * _GIB, int(15.75 * _GIB), 197e12, 819e9),
        # Published in GB; the compiler gives more than 95e9 bytes.
        Chip("v5p", 1, 96 * _GIB, int(95.73 * _GIB), 459e12, 2765e9, _MEGACORE),
        Chip("v6e", 1, 32 * _GIB, int(31.24 * _GIB), 918e12, 1640e9),
    )
}


@dataclasses.dataclass(frozen=True)
class TpuType:
    """A slice of chips of one kind.

    Attributes:
        name: String, what gcloud calls `--accelerator-type`.
        chip: `Chip`.
        topology: String, the chips along each axis, `"4x4"`.
        num_chips: Integer.
        replicas: Integer, as `TPUStrategy` counts them.
        hbm_bytes, usable_bytes: Integers, of one replica; see `Chip`.
        flops, bytes_per_second: Floats, of one replica; see `Chip`.
    """

    name: str
    chip: Chip
    topology: str

    @property
    def num_chips(self):
        chips = 1
        for length in self.topology.split("x"):
            chips *= int(length)
        return chips

    @property
    def replicas(self):
        return self.num_chips * self.chip.cores

    @property
    def hbm_bytes(self):
        return self.chip.hbm_bytes // self.chip.cores

    @property
    def usable_bytes(self):
        return self.chip.usable_bytes // self.chip.cores

    @property
    def flops(self):
        return self.chip.flops / self.chip.cores

    @property
    def bytes_per_second(self):
        return self.chip.bytes_per_second / self.chip.cores

    @property
    def num_replicas_in_sync(self):
        """As of a strategy, for `replica_batch_size`."""
        return self.replicas


_TYPES = {
    name: TpuType(name, _CHIPS[chip], topology)
    for name, chip, topology in (
        ("v2-8", "v2", "2x2"),
        ("v3-8", "v3", "2x2"),
        ("v3-32", "v3", "4x4"),
        ("v3-64", "v3", "4x8"),
        ("v3-512", "v3", "16x16"),
        ("v4-8", "v4", "2x2x1"),
        ("v4-32", "v4", "2x2x4"),
        ("v5litepod-4", "v5e", "2x2"),
        ("v5litepod-8", "v5e", "2x4"),
        ("v5litepod-64", "v5e", "8x8"),
        ("v5p-8", "v5p", "2x2x1"),
        ("v6e-8", "v6e", "2x4"),
    )
}


def names():
    """Tuple of the types that `tpu_type` knows."""
    return tuple(_TYPES)


def tpu_type(name):
    """The slice of a name.

    Args:
        name: String, one of `names()`.

    Returns:
        `TpuType`.

    Raises:
        ValueError: If there is none of this name.

    Example:

    >>> slice_of_32 = tpu_type("v3-32")
    >>> slice_of_32.replicas, slice_of_32.num_chips
    (32, 16)
    """
    if name not in _TYPES:
        raise ValueError(
            f"`tpu_type` must be one of {', '.join(_TYPES)}. "
            f"Received: tpu_type={name}"
        )
    return _TYPES[name]


def rows_of_replica(batch_size, slice_, name="batch_size"):
    """Rows of a replica of a slice; see `replica_batch_size`.

    Example:

    >>> rows_of_replica(64, tpu_type("v3-32"))
    2
    """
    return replica_batch_size(batch_size, slice_, name)


def check_kernel(slice_, precision):
    """Sees that a slice's chips know the products of `attention_kernel`.

    Args:
        slice_: `TpuType`.
        precision: String, such as `"bfloat16"`.

    Raises:
        ValueError: If not.
    """
    if slice_.chip.name in ("v2", "v3") and precision != "float32":
        raise ValueError(
            "`attention_kernel` multiplies in bfloat16 on v4 and later chips "
            "only; on v2 and v3 it takes --precision=float32. Received: "
            f"tpu_type={slice_.name}, precision={precision}"
        )


def check_replicas(slice_, strategy):
    """Sees that a TPU is of the type that the flags name.

    Args:
        slice_: `TpuType`.
        strategy: The `tf.distribute.Strategy` of the TPU.

    Raises:
        ValueError: If it has another number of replicas.
    """
    if strategy.num_replicas_in_sync != slice_.replicas:
        raise ValueError(
            f"`tpu_type` must be that of the TPU: {slice_.name} has "
            f"{slice_.replicas} replicas. Received: a TPU with "
            f"{strategy.num_replicas_in_sync} replicas"
        )
