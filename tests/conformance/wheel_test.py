"""What a person has who installed the package and has no checkout."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest
from script_runs import TINY
from script_runs import evaluation_of
from script_runs import results_of

ROOT = pathlib.Path(__file__).parents[2]
# So that pip builds with what is installed, without a download.
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")


def run(command, folder):
    """Runs a command outside of the checkout and returns what it printed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy, because pip writes to the folder that it builds."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in ("txl_keras", "train", "tpu_configs"):
        shutil.copytree(ROOT / name, copy / name, ignore=no_caches)
    return copy


def environment(folder, *package):
    """Makes an environment that has this one's packages and `package`."""
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = pathlib.Path(run([python, "-c", code], folder).strip())
    # Lines of a .pth file are searched after the environment's own packages.
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (packages / "outer.pth").write_text("\n".join(sorted(paths)) + "\n")
    pip = [*PIP, "--python", python, "install", *OFFLINE]
    run([*pip, *package], folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    """Path of the wheel that pip builds."""
    folder = tmp_path_factory.mktemp("wheel")
    run([*PIP, "wheel", *OFFLINE, "-w", folder, checkout], folder)
    (wheel,) = folder.glob("txl_keras-*.whl")
    return wheel


@pytest.mark.large
def test_a_wheel_trains_evaluates_generates_and_exports(
    wheel, checkout, corpus, tmp_path
):
    installed = environment(tmp_path / "environment", wheel)
    txl, run_flag = installed / "txl", "--workdir=mine"
    listed = run([txl, "--help"], tmp_path)
    assert "train           Trains a Transformer-XL" in listed
    # The flagfile reads another one of the wheel; later flags win.
    run(
        [
            txl, "train", "--flagfile=comparison/no_recurrence",
            f"--corpus={corpus}", *TINY, "--tokenizer=characters",
            "--max_steps=3", run_flag,
        ],
        tmp_path,
    )  # fmt: skip
    assert results_of(tmp_path / "mine")["step"] == 3
    assert (tmp_path / "mine" / "export" / "3" / "saved_model.pb").exists()
    module = [installed / "python", "-m", "txl_keras.train.evaluate"]
    run([*module, run_flag, "--max_eval_tokens=50"], tmp_path)
    assert evaluation_of(tmp_path / "mine")["num_tokens"] == 49
    written = run(
        [txl, "generate", run_flag, "--prompt=Sent", "--max_tokens=9"], tmp_path
    )
    assert written.startswith("Sent")
    run([txl, "export", run_flag, "--raw_text", "--output=out/1"], tmp_path)
    assert (tmp_path / "out" / "1" / "saved_model.pb").exists()
    # What an editable install runs is the checkout.
    folder = tmp_path / "editable"
    programs = environment(folder, "--editable", checkout)
    assert "--max_tokens:" in run(
        [programs / "txl", "generate", "--help"], tmp_path
    )
    script = checkout / "train" / "generate.py"
    text = script.read_text("utf-8")
    script.write_text(text.replace("Writes text with", "Edited:"), "utf-8")
    assert "Edited: the model" in run([programs / "txl", "--help"], tmp_path)
    module = [programs / "python", "-m", "txl_keras.train.generate", "--help"]
    assert "Edited: the model" in run(module, tmp_path)


def test_a_wheel_has_all_configs_and_no_tools_of_developers(wheel, tmp_path):
    shutil.unpack_archive(wheel, tmp_path, "zip")
    package = tmp_path / "txl_keras"
    for name in ("train/configs", "tpu_configs"):
        names = [
            {path.relative_to(root) for path in root.rglob("*.flags")}
            for root in (package / name, ROOT / name)
        ]
        assert names[0] == names[1] != set()
    # Trained models, each with its card.
    for root in (package, ROOT / "txl_keras"):
        files = {
            path.relative_to(root) for path in (root / "trained").glob("*/*")
        }
        names.append(files)
    assert names[-1] == names[-2]
    scripts = {path.name for path in (ROOT / "train").glob("*.py")}
    kept = {path.name for path in (package / "train").glob("*.py")}
    assert scripts - kept == {
        "benchmark.py",
        "tpu_table.py",
    }
    assert not (package / "train" / "peers").exists()
