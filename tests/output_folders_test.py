"""Folders that are replaced as a whole."""

import pytest

from txl_keras.output_folders import check_new
from txl_keras.output_folders import replaced_when_complete
from txl_keras.serving.export_folders import check_path


def test_the_current_folder_is_replaced(tmp_path, monkeypatch):
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "old").write_text("old")
    monkeypatch.chdir(folder)
    with replaced_when_complete(".") as unfinished:
        (tmp_path / unfinished / "new").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_the_folder_that_is_checked_is_the_one_that_is_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("years")
    for path in (tmp_path / "mine", tmp_path / "new" / ".." / "mine"):
        with pytest.raises(FileExistsError, match="`output` must be"):
            check_new("output", str(path))
        with pytest.raises(ValueError, match="`path` must be new.*thesis"):
            check_path(str(path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_error_leaves_what_was_there(tmp_path):
    (tmp_path / "old").write_text("old")
    with pytest.raises(OSError), replaced_when_complete(str(tmp_path)):
        raise OSError
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
