"""The guides in docs/, and the ten lines of README.md, run as they stand."""

import json
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from script_flags import flags_of

from txl_keras import extending
from txl_keras.models.presets import TRAINED
from txl_keras.scripts.running import expand_flagfiles
from txl_keras.scripts.txl import COMMANDS

ROOT = pathlib.Path(__file__).parents[1]
GENERATED = ("api.md", "flags.md")
# Some guides, and pages of all names and flags, show extensions.
shows_extensions = pytest.mark.skipif(
    not all(
        (ROOT / "txl_keras" / folder).is_dir()
        for folder in ("extensions", "pages", "tpu")
    ),
    reason="the guide shows what is not in this folder",
)
NOTEBOOKS = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
}
GUIDES = {
    path.name: path.read_text("utf-8")
    for path in sorted((ROOT / "docs").glob("*.md"))
    if path.name not in GENERATED
}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!http)([^)#]+)")


def blocks(text, *languages):
    """Returns pairs of language and code."""
    return [block for block in _BLOCK.findall(text) if block[0] in languages]


def commands(text):
    """Yields the words of each `txl` command in a text's shell blocks."""
    for _, block in blocks(text, "bash", "shell"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.lstrip().startswith("txl "):
                yield shlex.split(line, comments=True)


_MANUAL = """
import pathlib
from pydoc_data.topics import topics

text = "\\n".join(topics[name] for name in sorted(topics))[:40_000]
pathlib.Path("manual.txt").write_text(text, "utf-8")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs the Python and bash of a text, and returns names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(pathlib.Path(sys.executable).parent), ":")

    def run_blocks(text):
        names = {"__name__": "guide"}
        for i, (language, code) in enumerate(blocks(text, "python", "bash")):
            if language == "bash":
                done = subprocess.run(
                    ["bash", "-e", "-c", code], capture_output=True, text=True
                )
                assert done.returncode == 0, f"{code}\n{done.stderr[-5000:]}"
            elif (
                "import jax" not in code
            ):  # run in conformance/backends_test.py
                exec(compile(code, f"block {i + 1}", "exec"), names)
        return names

    return run_blocks


@pytest.fixture
def guide(run):
    """Function that runs a guide, as it stands or with other numbers."""
    return lambda name, numbers=(): run(smaller(GUIDES[name], dict(numbers)))


# As it stands, or with numbers that take seconds.
both_sizes = pytest.mark.parametrize(
    "full", [False, pytest.param(True, marks=pytest.mark.large)]
)


def smaller(text, numbers):
    """A text with other numbers, so that it runs in seconds."""
    for old, new in numbers.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


# === What the guides say holds ===


def readme_section(title):
    text = (ROOT / "README.md").read_text("utf-8")
    _, _, section = text.partition(f"\n## {title}\n")
    section, _, _ = section.partition("\n## ")
    return section


def test_a_model_that_comes_with_the_package_writes(run, capsys):
    section = readme_section("Install, and write in a minute")
    ((_, block),) = blocks(section, "python")
    run(f"```python\n{block}```\n")
    assert capsys.readouterr().out.startswith("class ")


# Half a minute on a free core.
@both_sizes
def test_ten_lines_train_score_generate_and_save(full, run, tmp_path):
    section = readme_section("In Keras, in ten lines")
    numbers = {
        ":105_000]": ":11_000]",
        ":100_000]": ":10_000]",
        "100_000:]": "10_000:]",
        '"quickstart"': '"quickstart", num_layers=1',
        '"adam")': '"adam", jit_compile=False)',
        '"mse")': '"mse", run_eagerly=True)',
    }
    if not full:
        section = smaller(section, numbers)
    codes = [code for _, code in blocks(section, "python")]
    lines = [line for line in codes[0].splitlines() if line.strip()]
    imports = [line for line in lines if line.startswith(("import", "from"))]
    assert len(lines) - len(imports) == 10
    names, _ = [run(f"```python\n{code}```\n") for code in codes]
    model = names["model"]  # as loaded, with its tokenizer
    model.compile("adam", run_eagerly=not full)
    held_out = names["text"][100_000 if full else 10_000 :]
    _, bits = model.evaluate(held_out, batch_size=1)
    # 8 before training.
    assert bits == pytest.approx(3.5, abs=0.25) if full else bits < 6
    assert (tmp_path / "my_model" / "model.safetensors").exists()


# 3 minutes on 2 free cores.
@shows_extensions
@both_sizes
def test_three_minutes(full, run, tmp_path):
    text = GUIDES["three_minutes.md"]
    if not full:
        numbers = {
            'load_corpus("python_stdlib")': 'load_corpus("manual.txt")',
            "STEPS, PARTS = 1500, 10": "STEPS, PARTS = 20, 2",
            "vocabulary_size=4000": "vocabulary_size=500",
            '"quickstart",': '"quickstart", num_layers=1,',
            "    weighted": "    jit_compile=False, weighted",
        }
        text = smaller(text, numbers)
        text = text.replace("```python", f"```python\n{_MANUAL}", 1)
    names = run(text)
    assert names["curve"][-1] < names["curve"][0]
    assert (tmp_path / "curve.png").exists()
    assert (tmp_path / "surprise.html").exists()
    if full:
        assert names["curve"][-1] == pytest.approx(1.65, abs=0.15)
        assert names["gzip_bits"] == pytest.approx(2.2, abs=0.2)


# A quarter of a minute on a free core.
@both_sizes
def test_own_text(full, guide, tmp_path):
    numbers = {
        "70_000": "12_000",
        "60_000": "10_000",
        "65_000": "11_000",
        "2e-3, 234": "2e-3, 38",
        "    weighted": "    jit_compile=False, weighted",
        "save_freq=50": "save_freq=15",
    }
    names = guide("own_text.md", () if full else numbers)
    val = names["history"].history["val_bits_per_byte"]
    assert not (tmp_path / "backup").exists()
    if full:
        assert names["scores"]["bits_per_byte"] == pytest.approx(3.4, abs=0.2)
        assert names["gzip_bits"] == pytest.approx(2.9, abs=0.2)
        assert val[1] < val[0]
    else:
        bits = names["scores"]["bits_per_byte"]
        assert bits < val[1] + 0.5 < val[0] + 0.5


# Half a minute on a free core.
@both_sizes
def test_fine_tune_with_lora(full, guide):
    numbers = {
        "60_000": "10_000",
        "code[:30_000], code[30_000:35_000]": (
            "code[:6_000], code[6_000:6_400]"
        ),
        'compile("adam")': 'compile("adam", run_eagerly=True)',
        "e-3))": "e-3), jit_compile=False)",
    }
    names = guide("fine_tune_with_lora.md", () if full else numbers)
    before, after = names["before"], names["after"]
    if full:
        assert before == pytest.approx(3.1, abs=0.2)
        assert after == pytest.approx(2.6, abs=0.2)
    assert after < before - 0.1
    assert names["int8"] == pytest.approx(after, abs=0.03)
    again = names["bits"](names["again"], names["test"])
    assert again == pytest.approx(after, abs=1e-4)


# A quarter of a minute on a free core.
@both_sizes
def test_music_ids(full, run, tmp_path):
    # Without its commands.
    text = GUIDES["music_ids.md"]
    text = re.sub(r"```bash.*?```", "", text, flags=re.DOTALL)
    if full:
        assert run(text)["right"] == 1
        return
    numbers = {"epochs=20": "epochs=2", "e-3))": "e-3), jit_compile=False)"}
    names = run(smaller(text, numbers))
    losses = names["history"].history["loss"]
    assert losses[1] < losses[0] - 0.5
    assert len({tuple(tune) for tune in names["tunes"]}) == 48
    continued = np.load(tmp_path / "continued.npy")
    assert len(continued) == len(names["tunes"][0])
    np.testing.assert_array_equal(continued[:42], names["tunes"][0][:42])


# A quarter of a minute on a free core.
@both_sizes
def test_time_series(full, guide):
    numbers = {
        "(0, 32)": "(32,)",
        "range(10)": "range(3)",
        "96:112": "96:99",
        '"mse")': '"mse", jit_compile=False)',
    }
    names = guide("time_series.md", () if full else numbers)
    errors = names["errors"]
    assert names["forecast"].shape == (64, 16 if full else 3)
    assert errors[32] < 0.95  # about 1 without memory
    if full:
        assert errors[0] == pytest.approx(1, abs=0.1)
        assert errors[32] == pytest.approx(0.13, abs=0.04)
        assert names["error"] < 0.05


# 20 seconds on a free core.
@both_sizes
def test_keras(full, guide):
    numbers = {
        "* 50": "* 12",
        "MemoryStack(2": "MemoryStack(1",
        "range(2)": "range(1)",
        '"num_layers": 2': '"num_layers": 1',
        # Adam is a third of the operations of a small model's step.
        'compile("adam", loss': 'compile("sgd", loss, run_eagerly=True',
        "Adam(1e-3, global": "SGD(1e-3, global",
        "    steps_per_ex": "    jit_compile=False, steps_per_ex",
    }
    names = guide("keras.md", () if full else numbers)
    assert names["log_probs"].shape == (4, 16, 256)


# A minute on 2 free cores.
@shows_extensions
@both_sizes
def test_agents(full, guide):
    numbers = {
        "update % 50": "update % 5",
        "num_updates=600": "num_updates=5",
        "length=30": "length=4",
        # Each step of the LSTM is traced.
        "steps=16": "steps=3",
        "num_layers=2": "num_layers=1",
    }
    names = guide("agents.md", () if full else numbers)
    share = names["share"]
    assert all(0 <= value <= 1 for value in share.values())
    if full:
        assert share[names["GTrXL"]] > 0.98
        assert share[names["LSTM"]] == pytest.approx(0.5, abs=0.1)


# Half a minute on a free core.
@shows_extensions
@both_sizes
def test_beyond(full, guide):
    numbers = {
        "range(40)": "range(1)",
        "music.compile(": "music.compile(run_eagerly=True, optimizer=",
        "others = tunes[8:]": "others = tunes[8:16]",
        "    keras.losses.Sparse": "    loss=keras.losses.Sparse",
        ":30], 50": ":78], 2",
    }
    names = guide("beyond.md", () if full else numbers)
    if full:
        assert names["right"].min() > 0.85
        assert names["nats"]["pitch_loss"] < 0.3
        return
    assert type(names["model"].backbone).__name__ == "SameLayerBackbone"
    differs = np.abs(names["hidden"] - names["changed"]).max(axis=(0, 2))
    np.testing.assert_array_equal(np.flatnonzero(differs), np.arange(4, 16))
    assert np.shape(names["written"]) == (8, 80, 3)


def test_extending(guide, monkeypatch):
    extending.registered("")  # imports what is there
    found = {kind: dict(named) for kind, named in extending._found.items()}
    monkeypatch.setattr(extending, "_found", found)
    names = guide("extending.md")
    backbone = names["backbone"]
    ids = np.arange(12).reshape(2, 6)
    x = backbone.token_embedding(ids) * backbone.hidden_dim**0.5
    np.testing.assert_allclose(backbone(ids)[0], x, rtol=1e-6)
    assert names["scores"]["nll"] < names["scores"]["alone"] - 0.5
    assert names["trainer"].step.numpy() == 1
    assert set(names["ids"]) == {5, 6}


def test_troubleshooting(guide):
    assert guide("troubleshooting.md")["keras"].backend.backend() == (
        "tensorflow"
    )


# A minute on 2 free cores.
@both_sizes
def test_recall(full, guide):
    if not full:
        numbers = {
            "8, 1500": "8, 2",
            "40_000": "2_000",
            "norm=1.0)": "norm=1.0), run_eagerly=True",
            '    "memory of 24": measure(lambda: transformer_xl(24)),\n': "",
            '    "no recurrence": measure(lambda: transformer_xl(0)),\n': "",
        }
        assert len(guide("recall.md", numbers)["accuracy"]) == 2
        return
    names = guide("recall.md")
    with_memory, same_length, without, lstm = names["accuracy"].values()
    assert min(with_memory[:3] + same_length[:3]) > 0.9
    # Chance is 0.25.
    assert max(with_memory[4:] + same_length[3:] + without[1:]) < 0.45
    assert lstm[4] > 0.5


# Values that a guide with commands says hold, by the names in its code.
VALUES = {
    "concepts.md": lambda with_memory, without_memory: (
        with_memory < 1e-5 and without_memory > 0.01
    ),
    "large_vocabularies.md": lambda total, difference: (
        abs(total - 1).max() < 1e-4 and difference < 1e-4
    ),
    "serving.md": lambda loaded, scores: scores["lengths"].numpy() == [2],
}
WITH_COMMANDS = [
    name
    for name, text in GUIDES.items()
    if blocks(text, "bash") and name != "README.md"
]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """A folder that holds a short run of the quickstart, and its ids."""
    folder = tmp_path_factory.mktemp("quickstart")
    code = (
        "txl train --flagfile=quickstart --max_steps=20 --warmup_steps=2 "
        f"--max_eval_tokens=3000 --max_sample_tokens=20 --data_dir={folder}/ids"
    )
    environment = {"PATH": f"{pathlib.Path(sys.executable).parent}:/usr/bin"}
    subprocess.run(
        ["bash", "-c", code], cwd=folder, check=True, env=environment
    )
    return folder


# About 20 minutes.
@shows_extensions
@pytest.mark.large
@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_a_guide_with_commands(name, guide, quickstart, tmp_path, monkeypatch):
    tmp_path.joinpath("runs").mkdir()
    subprocess.run(
        ["cp", "-r", quickstart / "runs/quickstart", tmp_path / "runs"],
        check=True,
    )
    monkeypatch.setenv("TFDS_DATA_DIR", str(quickstart / "ids"))
    names = guide(name)
    if name in VALUES:
        holds = VALUES[name]
        arguments = holds.__code__.co_varnames[: holds.__code__.co_argcount]
        assert holds(*(names[argument] for argument in arguments))


# === Notebooks ===


# 10 to 15 minutes on 2 free cores.
@shows_extensions
@pytest.mark.large
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PATH", os.environ["PATH"])  # restores it
    script = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    notebook = script["executed"](script["notebook"](GUIDES[f"{name}.md"]))
    assert any(cell.get("outputs") for cell in notebook["cells"])


def test_stored_outputs_are_small_and_of_no_machine():
    size = 0
    for name, notebook in NOTEBOOKS.items():
        outputs = [
            output
            for cell in notebook["cells"]
            for output in cell.get("outputs", ())
        ]
        assert outputs, f"run python docs/generate.py --execute {name}"
        size += len(json.dumps(outputs))
        for output in outputs:
            text = "".join(output.get("text", ()))
            assert not re.search(r"/tmp|/home|/root|s/step|tokens/s", text)
            assert output.get("name") != "stderr"
            assert "Traceback" not in text
    assert size < 300_000


# === Commands and links ===


@shows_extensions
@pytest.mark.parametrize(
    "path",
    [
        *("README.md", "tpu_configs/README.md"),
        *(f"docs/{name}" for name in GUIDES),
        *(f"txl_keras/trained/{name}/README.md" for name in sorted(TRAINED)),
    ],
)
def test_commands_links_and_files_are_there(path):
    text = (ROOT / path).read_text("utf-8")
    for _, command, *flags in commands(text):
        flags = expand_flagfiles(flags, ROOT)
        with flags_of(f"{COMMANDS[command]}.py", *flags) as parse:
            parse()  # an error names an unknown flag
    for link in _LINK.findall(_BLOCK.sub("", text)):
        assert (ROOT / path).parent.joinpath(link).exists(), link


def test_every_guide_is_in_the_table_and_runs():
    tests = pathlib.Path(__file__).read_text("utf-8")
    for name, text in GUIDES.items():
        kinds = {kind for kind, _ in _BLOCK.findall(text)}
        assert kinds <= {"python", "bash", "shell", "text", "json"}
        if name != "README.md":
            assert f"]({name})" in GUIDES["README.md"]
            if blocks(text, "python"):
                assert name in WITH_COMMANDS or f'"{name}"' in tests


@shows_extensions
def test_generated_pages_agree_with_the_code(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="__main__")


def test_fit_is_measured_then_trains(monkeypatch, capsys, tmp_path):
    (tmp_path / "text").write_bytes(b"to be or not to be " * 200)
    sizes = "--num_layers=1 --steps=3 --batch_size=2 --segment_length=8"
    command = f"measure_fit.py --preset=quickstart {sizes} --minutes=0.02"
    argv = [*command.split(), f"--text={tmp_path / 'text'}"]
    monkeypatch.setattr(sys, "argv", argv)
    tf.config.run_functions_eagerly(True)  # compiling takes seconds
    try:
        script = ROOT / "docs" / "measure_fit.py"
        runpy.run_path(str(script), run_name="__main__")
    finally:
        tf.config.run_functions_eagerly(False)
    found = capsys.readouterr().out
    assert re.search(r"2 x 8: first step .* median step .* tokens/s", found)
    bits = float(re.search(r"planned, ([\d.]+) bits per byte", found)[1])
    assert 0 < bits < 9
