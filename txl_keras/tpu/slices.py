"""Describes TPU slices, by their names in gcloud."""

import dataclasses
import math

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Describes a generation of TPU chips, with published numbers."""

    name: str  # as it appears in topologies
    # Replicas of `TPUStrategy` per chip: 2 on v2 and v3, otherwise 1 (the two
    # cores of v4 and v5p work as one). The following numbers are per replica.
    cores: int
    # Memory that the compiler allows a program, from the error of the pinned
    # compiler when a program needs more.
    usable_bytes: int
    flops: float  # bfloat16 operations per second
    bytes_per_second: float
    options: tuple = ()  # pairs for the compiler


# Without it the compiler treats the two cores of a v4 chip as two devices with
# half of the memory each.
_MEGACORE = (("chip_config_name", "megacore"),)
_CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v2", 2, int(7.48 * _GIB), 22.5e12, 350e9),
        Chip("v3", 2, int(15.48 * _GIB), 61.5e12, 450e9),
        Chip("v4", 1, int(30.75 * _GIB), 275e12, 1228e9, _MEGACORE),
        Chip("v5e", 1, int(15.75 * _GIB), 197e12, 819e9),
        # Published in GB; the compiler gives more than 95e9 bytes.
        Chip("v5p", 1, int(95.73 * _GIB), 459e12, 2765e9, _MEGACORE),
        Chip("v6e", 1, int(31.24 * _GIB), 918e12, 1640e9),
    )
}


@dataclasses.dataclass(frozen=True)
class TpuType:
    """Describes a slice of TPU chips."""

    chip: Chip
    topology: str  # chips along each axis, such as "4x4"

    @property
    def num_replicas_in_sync(self):
        """Returns the number of replicas, like a strategy."""
        return math.prod(map(int, self.topology.split("x"))) * self.chip.cores


# Topologies by the number in the name, which counts cores, two per chip; on v5e
# and v6e it counts chips.
_CUBES = {
    8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4",
    256: "4x4x8",
}  # fmt: skip
_SQUARES = {
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}
TYPES = {  # by the value of gcloud's `--accelerator-type`
    f"{prefix}-{number}": TpuType(_CHIPS[chip], topology)
    for prefix, chip, topologies in (
        ("v2", "v2", {8: "2x2"}),
        # With the slices of the published runs.
        ("v3", "v3", {8: "2x2", 32: "4x4", 64: "4x8", 512: "16x16"}),
        ("v4", "v4", _CUBES),
        ("v5litepod", "v5e", {4: "2x2", **_SQUARES}),
        ("v5p", "v5p", _CUBES),
        ("v6e", "v6e", _SQUARES),
    )
    for number, topology in topologies.items()
}
