"""A folder that is gone: waited for, never written in its place."""

import time

import pytest

from txl_keras import missing_folder
from txl_keras.missing_folder import when_present


@pytest.fixture
def present(tmp_path):
    path = tmp_path / "run" / "config.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(missing_folder, "WAIT_SECONDS", 0)


def test_what_failed_while_it_was_missing_is_done_again(present, monkeypatch):
    calls, away = [], present.with_name("away")

    def write():
        calls.append(None)
        if len(calls) == 1:
            present.rename(away)
            present.read_text()
        return "written"

    monkeypatch.setattr(missing_folder, "WAIT_SECONDS", 300)
    monkeypatch.setattr(time, "sleep", lambda seconds: away.rename(present))
    assert when_present(str(present), write) == "written"
    assert len(calls) == 2


def test_an_error_of_another_cause_is_raised(present):
    other = present.with_name("other")
    with pytest.raises(FileNotFoundError, match="other"):
        when_present(str(present), other.read_text)


def test_the_wait_ends_with_the_path_and_the_remedy(present):
    present.unlink()
    with pytest.raises(OSError, match="resume") as error:
        when_present(str(present), pytest.fail)
    assert f"`workdir` {present.parent} must stay" in str(error.value)
    assert f"{present} has been missing for 0 seconds" in str(error.value)
