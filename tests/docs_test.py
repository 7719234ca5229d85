"""The guides in docs/, and the ten lines of README.md, run as they stand."""

import pathlib
import re
import shlex

import pytest
from script_flags import flags_of

from txl_keras.scripts.txl import COMMANDS

ROOT = pathlib.Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!http)([^)#]+)")


def blocks(text, language):
    return [block for kind, block in _BLOCK.findall(text) if kind == language]


def commands(text):
    """Yields the words of each line of a text's shell blocks."""
    for block in blocks(text, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs the Python of a text, and returns its names."""

    def run_python(text):
        monkeypatch.chdir(tmp_path)
        names = {"__name__": "guide"}
        for i, block in enumerate(blocks(text, "python")):
            exec(compile(block, f"block {i + 1}", "exec"), names)
        return names

    return run_python


@pytest.fixture
def guide(run):
    """Function that runs a guide."""
    return lambda name: run((ROOT / "docs" / name).read_text("utf-8"))


# === What the guides say holds ===


def test_ten_lines_train_score_generate_and_save(run, tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    _, _, section = text.partition("\n## In Keras, in ten lines\n")
    section, _, _ = section.partition("\n## ")
    (block,) = blocks(section, "python")
    lines = [line for line in block.splitlines() if line.strip()]
    imports = [line for line in lines if line.startswith(("import", "from"))]
    assert len(lines) - len(imports) == 10
    names = run(section)
    model = names["model"]  # as loaded, with its tokenizer
    model.compile("adam")
    _, bits = model.evaluate(names["text"][100_000:], batch_size=1)
    assert bits == pytest.approx(3.5, abs=0.25)
    assert (tmp_path / "my_model" / "model.safetensors").exists()


def test_own_text(guide, tmp_path):
    names = guide("own_text.md")
    assert names["scores"]["bits_per_byte"] == pytest.approx(3.4, abs=0.2)
    assert names["gzip_bits"] == pytest.approx(2.9, abs=0.2)
    val = names["history"].history["val_bits_per_byte"]
    assert val[1] < val[0]
    assert not (tmp_path / "backup").exists()


def test_fine_tune_with_lora(guide):
    names = guide("fine_tune_with_lora.md")
    assert names["before"] == pytest.approx(3.1, abs=0.2)
    assert names["after"] == pytest.approx(2.6, abs=0.2)
    assert names["int8"] == pytest.approx(names["after"], abs=0.03)
    bits, test = names["bits"], names["test"]
    assert bits(names["again"], test) == pytest.approx(names["after"], abs=1e-4)


def test_music_ids(guide, tmp_path):
    names = guide("music_ids.md")
    assert names["right"] == 1
    assert len({tuple(tune) for tune in names["tunes"]}) == 48
    assert (tmp_path / "continued.npy").exists()


def test_time_series(guide):
    names = guide("time_series.md")
    assert names["errors"][0] == pytest.approx(1, abs=0.1)
    assert names["errors"][32] == pytest.approx(0.13, abs=0.04)
    assert names["error"] < 0.05


# === Commands and links ===


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_commands_links_and_files_of_a_guide_are_there(path):
    text = path.read_text("utf-8")
    for command, name, *flags in commands(text):
        assert command == "txl"
        with flags_of(f"{COMMANDS[name]}.py", *flags) as parse:
            parse()  # an error names an unknown flag
    for link in _LINK.findall(text):
        assert (path.parent / link).exists(), link


def test_every_guide_is_in_the_table_and_runs():
    table = (ROOT / "docs" / "README.md").read_text("utf-8")
    tests = pathlib.Path(__file__).read_text("utf-8")
    for path in GUIDES:
        if path.name != "README.md":
            assert f"]({path.name})" in table
            assert f'guide("{path.name}")' in tests
            for kind, _ in _BLOCK.findall(path.read_text("utf-8")):
                assert kind in ("python", "bash")
