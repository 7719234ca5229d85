"""Flagfiles are found from any folder, by path or by name."""

import pathlib

import pytest
from script_runs import TRAIN

from txl_keras.scripts.running import expand_flagfiles

ROOT = TRAIN.parent


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expanded(*arguments):
    return list(expand_flagfiles(arguments, ROOT))


@pytest.mark.parametrize(
    "path",
    [p.relative_to(ROOT) for p in sorted(TRAIN.rglob("configs/**/*.flags"))],
    ids=str,
)
def test_every_config_is_read_from_another_folder(path):
    by_path = expanded(f"--flagfile={path}")
    assert by_path
    assert all(flag.startswith("--") for flag in by_path)
    assert not any("flagfile" in flag for flag in by_path)
    name = path.relative_to("train/configs").with_suffix("")
    assert expanded(f"--flagfile={name}") == by_path
    assert expanded("--flagfile", f"{name}.flags") == by_path


def test_a_slice_has_a_name_too():
    by_path = expanded("--flagfile=tpu_configs/v2_8.flags")
    assert expanded("-flagfile=v2_8") == by_path
    assert "--tpu_type=v2-8" in by_path


def test_flags_stay_in_order_and_own_files_come_first(home):
    (home / "quickstart").write_text("# Mine\n\n --b=é \n--flagfile=more\n//\n")
    (home / "more").write_text("\ufeff--c\n", "utf-8")  # as of Notepad
    found = expanded("--a", "--flagfile=quickstart", "--d", "--", "--flagfile")
    assert found == ["--a", "--b=é", "--c", "--d", "--", "--flagfile"]


def test_a_flagfile_that_leads_to_itself_is_refused(home):
    (home / "one").write_text("--flagfile=two\n")
    (home / "two").write_text("--a\n--flagfile=one\n")
    with pytest.raises(ValueError, match="leads to itself.*=one in .*two"):
        expanded("--flagfile=one")


@pytest.mark.parametrize(
    "flag", ["--flagfile=nowhere", "--flagfile", "--flagfile="]
)
def test_a_flagfile_that_is_not_there_is_refused(flag):
    with pytest.raises(ValueError, match="enwik8_base, .* Received: --flagf"):
        expanded(flag)


def test_a_script_says_which_flagfile_is_missing(fail):
    assert pathlib.Path.cwd() != ROOT
    fail("export.py", "--flagfile=nowhere", messages=["`flagfile` must be"])
