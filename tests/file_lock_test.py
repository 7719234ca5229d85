"""Locks on files, and what else differs on Windows."""

import ast
import pathlib
import types

import pytest
from script_runs import locked_elsewhere

from txl_keras import file_lock
from txl_keras.training import utilization

NOT_ON_WINDOWS = {"fcntl", "grp", "pwd", "resource", "termios"}


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


def test_windows_imports_all_modules(monkeypatch):
    paths = [*pathlib.Path(file_lock.__file__).parent.rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        for node in ast.parse(path.read_text("utf-8")).body:  # not in a `try`
            names = {getattr(node, "module", None)}
            names |= {alias.name for alias in getattr(node, "names", ())}
            assert not names & NOT_ON_WINDOWS, path
    monkeypatch.setattr(utilization, "resource", None)
    assert utilization.device_memory() == {}
