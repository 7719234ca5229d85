"""What the host's memory is asked for."""

import types

import pytest

from txl_keras.training import host_memory
from txl_keras.training.host_memory import keep_freed_memory


@pytest.mark.skipif(
    host_memory.host_memory_of(lambda: None) is None, reason="needs glibc"
)
def test_a_call_takes_what_it_holds_at_its_peak():
    def call():
        for _ in range(3):  # one after the other
            bytearray(b"x") * 50_000_000

    found = host_memory.host_memory_of(call)
    assert 45_000_000 < found < 90_000_000


def test_freed_memory_is_not_returned_nor_mapped_anew(monkeypatch):
    calls = []
    libc = types.SimpleNamespace(mallopt=lambda *args: calls.append(args))
    monkeypatch.setattr(host_memory, "_glibc", lambda: libc)
    keep_freed_memory()
    # M_MMAP_MAX and M_TRIM_THRESHOLD of glibc's malloc.h.
    assert calls == [(-4, 0), (-1, 2**31 - 1)]


def test_other_systems_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "_PROCESS", tmp_path)
    keep_freed_memory()
    assert host_memory.host_memory_of(lambda: None) is None
