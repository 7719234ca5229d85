"""What the host's memory is asked for."""

import ctypes
import types

import pytest

from txl_keras.training.host_memory import keep_freed_memory


@pytest.mark.parametrize(
    "platform, expected",
    # M_MMAP_MAX and M_TRIM_THRESHOLD of glibc's malloc.h.
    [("linux", [(-4, 0), (-1, 2**31 - 1)]), ("darwin", [])],
)
def test_freed_memory_of_linux_is_not_returned(platform, expected, monkeypatch):
    calls = []
    libc = types.SimpleNamespace(mallopt=lambda *args: calls.append(args))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    monkeypatch.setattr("sys.platform", platform)
    keep_freed_memory()
    assert calls == expected
