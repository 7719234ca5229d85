"""Memory of the host: how much a call takes, and how to reuse it on CPUs."""

import ctypes
import gc
import pathlib

_PROCESS = pathlib.Path("/proc/self")
# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST = 2**31 - 1


def keep_freed_memory():
    """Lets this process reuse memory that it freed, and not return it to Linux.

    Each step on a CPU allocates the memory of the step before. By default,
    glibc has returned that to Linux, which clears it page by page: a tenth of
    the time of a training step, a fifth of an evaluation step. On systems
    without glibc this is a no-op. The scripts in train/ call it; other programs
    may call it before their first step.

    Example:

    >>> keep_freed_memory()
    """
    libc = _glibc()
    if libc:
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST)


def host_memory_of(call):
    """Returns the bytes that a call takes at its peak, or `None` if unknown."""
    # Only Linux with glibc reports them.
    libc = _glibc()
    if libc is None:
        return None
    gc.collect()
    libc.malloc_trim(0)  # free memory must not count as held
    before = _status("VmRSS")
    (_PROCESS / "clear_refs").write_text("5")  # resets the peak
    call()
    return _status("VmHWM") - before


def _status(name):
    """Returns the bytes of a line such as `VmRSS:  123 kB`."""
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"{_PROCESS / 'status'} has no {name}")


def _glibc():
    """Returns the C library of this process, or `None` if it is not glibc."""
    if not (_PROCESS / "status").exists():
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") else None
