"""Locks on files, which only one process at a time can hold."""

import contextlib
import time

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt


def lock(file, wait=True, shared_with_children=False):
    """Locks an open file until it is closed or this process ends."""
    # The lock excludes other processes, not other threads of this process. If
    # it is `shared_with_children` (not on Windows), it is held until all
    # processes that inherited the file have closed it, too.
    if fcntl:
        # Forked processes inherit locks of `flock`, but not of `lockf`.
        call = fcntl.flock if shared_with_children else fcntl.lockf
        call(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    while True:
        file.seek(0)
        with contextlib.suppress(OSError):
            # Locks one byte, which need not exist.
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return
        if not wait:
            raise BlockingIOError("The file is locked by another process.")
        time.sleep(0.1)
