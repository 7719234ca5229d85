"""Tests of reading JSON that a stranger may have written."""

import os

import pytest

from txl_keras.json_files import check_fields
from txl_keras.json_files import parse_json
from txl_keras.json_files import read_json


def test_reads_an_object_and_a_list(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"n_layer": 3, "é": [1]}', "utf-8")
    assert read_json(path) == {"n_layer": 3, "é": [1]}
    path.write_text("[1, 2]")
    assert read_json(path, list) == [1, 2]
    assert read_json(path, (dict, list)) == [1, 2]


@pytest.mark.parametrize(
    "text, reason",
    [
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b"[" + b"[]," * 600_000 + b"[]]", "opening brackets"),
        (b'{"n_layer": ', "damaged"),
        (b"\xff\xfe{}", "damaged"),
        (b"[1]", "JSON object"),
        (b"9" * 5000, "damaged"),
    ],
)
def test_what_cannot_be_used_names_the_file(tmp_path, text, reason):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=reason) as error:
        read_json(path, max_bytes=1 << 21)
    assert "config.json" in str(error.value)
    assert len(str(error.value)) < 500


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": "' + "x" * 100 + '"}')
    with pytest.raises(ValueError, match="at most 99 bytes"):
        read_json(path, max_bytes=99)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match="must be a file.*pipe"):
        read_json(tmp_path / "config.json")


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file .*config.json"):
        read_json(tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match="must be a file.*a folder"):
        read_json(tmp_path)


def test_an_error_shows_little_of_the_text():
    with pytest.raises(ValueError, match="a line must hold") as error:
        parse_json('["' + "x" * 10_000 + '"]', "a line")
    assert len(str(error.value)) < 300


def test_fields_have_the_types_that_they_must():
    content = {"model": {"name": "x", "size": 3, "rate": 0.5}, "on": True}
    kinds = {
        "model": "an object",
        "model.name": "a string",
        "model.size": "an integer",
        "model.rate": "a number",
        "model.other": "a list or null",
        "on.off": "a string or null",
        "on": "a boolean",
    }
    check_fields(content, kinds, "a file")
    for field, kind, received in [
        ("on", "an integer", "Received: True"),
        ("model.rate", "an integer", "Received: 0.5"),
        ("model.size", "a list or null", "Received: 3"),
        ("model.other", "a number", "Received: null, or no such field"),
    ]:
        message = f"a file .* `{field}` must be {kind}. {received}"
        with pytest.raises(ValueError, match=message):
            check_fields(content, {field: kind}, "a file")
