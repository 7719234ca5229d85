"""Folders that are replaced as a whole."""

import pytest

from txl_keras.output_folders import replaced_when_complete


def test_the_current_folder_is_replaced(tmp_path, monkeypatch):
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "old").write_text("old")
    monkeypatch.chdir(folder)
    with replaced_when_complete(".") as unfinished:
        (tmp_path / unfinished / "new").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_an_error_leaves_what_was_there(tmp_path):
    (tmp_path / "old").write_text("old")
    with pytest.raises(OSError), replaced_when_complete(str(tmp_path)):
        raise OSError
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
