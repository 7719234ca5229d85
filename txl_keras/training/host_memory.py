"""Memory of the host, which is the device where a CPU computes."""

import ctypes
import gc
import pathlib

_PROCESS = pathlib.Path("/proc/self")
# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST = 2**31 - 1


def keep_freed_memory():
    """Lets this process reuse memory that it freed, rather than return it.

    Each step of a CPU asks for the memory of the last one. By default glibc
    has given that back, and Linux clears it again, page by page: a tenth of a
    training step, a fifth of an evaluation step. Other systems are left as
    they are. Scripts in train/ call it; others may, before their first step.

    Example:

    >>> keep_freed_memory()
    """
    libc = _glibc()
    if libc:
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST)


def host_memory_of(call):
    """How much more memory this process takes while a call lasts.

    Args:
        call: Function without arguments.

    Returns:
        Integer, bytes: the peak in the call above what was held before it.
        `None` where the system is not Linux with glibc.

    Example:

    >>> host_memory_of(lambda: len(b"x" * 10**8)) > 0.9 * 10**8
    True
    """
    libc = _glibc()
    if libc is None:
        return None
    gc.collect()
    libc.malloc_trim(0)  # what is free is not held
    before = _status("VmRSS")
    (_PROCESS / "clear_refs").write_text("5")  # the peak is what is held now
    call()
    return _status("VmHWM") - before


def _status(name):
    """Bytes of a line such as `VmRSS:  123 kB`."""
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"{_PROCESS / 'status'} has no {name}")


def _glibc():
    """The C library of this process, or `None` if it is another's."""
    if not (_PROCESS / "status").exists():
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") else None
