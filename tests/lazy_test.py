import os
import sys

import pytest

from txl_keras import data
from txl_keras.lazy import without_tensorflow_log


def test_names_are_imported_on_first_use_and_listed():
    assert {*data.__all__} <= {*dir(data)}
    for name in data.__all__:
        assert getattr(data, name).__name__ == name
    with pytest.raises(AttributeError, match="'txl_keras.data' has no .*'nam"):
        data.__getattr__("name")


@pytest.mark.parametrize("level", [None, "0"])
def test_tensorflow_is_imported_without_its_log(level, monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    log = (
        b"WARNING: All log messages before absl::InitializeLog() is called\n"
        b"I0000 00:00:1795991196.239321   14233 port.cc:153] oneDNN\n"
        b"2026-11-29 22:15:01.123: E external/local_xla] cuda\n"
    )
    with pytest.raises(ImportError), without_tensorflow_log():
        os.write(2, log + b"A line of something else\n")
        raise ImportError
    shown = capfd.readouterr().err.encode()
    assert shown == (log if level else b"") + b"A line of something else\n"
