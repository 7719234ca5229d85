"""Locks on files, with and without those of the system."""

import types

import pytest
from script_runs import locked_elsewhere
from script_runs import run_code

from txl_keras import file_lock

# As on Windows.
WITHOUT_FCNTL = """
# `subprocess` takes a system with msvcrt for Windows.
import importlib, pkgutil, subprocess, sys, types
sys.modules.update(fcntl=None, resource=None, msvcrt=types.ModuleType("msvcrt"))
import txl_keras
for module in pkgutil.walk_packages(txl_keras.__path__, "txl_keras."):
    importlib.import_module(module.name)
from txl_keras.training.utilization import device_memory
assert device_memory() == {}
"""


def test_a_lock_excludes_other_processes_until_they_end(tmp_path):
    path = tmp_path / "lock"
    with locked_elsewhere(path) as process, path.open("w") as file:
        with pytest.raises(BlockingIOError):
            file_lock.lock(file, wait=False)
        process.stdin.close()
        file_lock.lock(file)  # waits until the process has ended


def test_windows_locks_the_first_byte_and_waits_for_it(monkeypatch, tmp_path):
    calls = []

    def locking(descriptor, mode, num_bytes):
        calls.append((descriptor, mode, num_bytes))
        if len(calls) < 3:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(file_lock, "fcntl", None)
    windows = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
    monkeypatch.setattr(file_lock, "msvcrt", windows, raising=False)
    with (tmp_path / "lock").open("w") as file:
        file.write("x")
        with pytest.raises(BlockingIOError):
            file_lock.lock(file, wait=False)
        file_lock.lock(file)
        assert file.tell() == 0
        assert calls == 3 * [(file.fileno(), 2, 1)]


def test_windows_imports_all_modules():
    done = run_code(WITHOUT_FCNTL)
    assert done.returncode == 0, done.stderr
