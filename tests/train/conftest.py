"""Finished runs that the tests of several scripts begin with."""

import shutil

import pytest
from script_runs import TINY
from script_runs import made_once

from txl_keras.scripts import trained_model


@pytest.fixture(scope="module")
def finished_runs():
    """The runs that `finished_run` copied for a file, by name."""
    return {}


@pytest.fixture
def finished_run(finished_runs, succeed, tmp_path_factory):
    """Function that trains once for all test files, in this process.

    It copies the run once for each file, and returns the workdir of the copy,
    what training printed, and the flags.
    """

    def train(name, *flags):
        def make(folder):
            workdir = folder / "workdir"
            printed = succeed("main.py", *flags, f"--workdir={workdir}")
            printed = printed.replace(str(workdir), "{workdir}")
            (folder / "printed").write_text(printed, "utf-8")

        if name not in finished_runs:
            folder = made_once(make, f"{name} run", tmp_path_factory)
            workdir = tmp_path_factory.mktemp(name) / "workdir"
            shutil.copytree(folder / "workdir", workdir)
            printed = (folder / "printed").read_text("utf-8")
            printed = printed.replace("{workdir}", str(workdir))
            flags = (*flags, f"--workdir={workdir}")
            finished_runs[name] = workdir, printed, flags
        return finished_runs[name]

    return train


@pytest.fixture
def no_export(monkeypatch):
    """Lets runs end without an export, which takes 3 seconds."""
    monkeypatch.setattr(trained_model, "export_run", lambda *_: None)


@pytest.fixture
def train(corpus, succeed, tmp_path):
    """Function that trains a tiny model of `corpus` in `tmp_path`."""

    def train(*flags, run=succeed, **expected):
        given = f"--corpus={corpus}", f"--workdir={tmp_path}", *TINY
        return run("main.py", *given, *flags, **expected)

    return train


@pytest.fixture
def run(corpus, finished_run):
    """Workdir, output and flags of a finished run."""
    return finished_run("bytes", f"--corpus={corpus}", *TINY)


@pytest.fixture(scope="session")
def word_corpus(tmp_path_factory):
    """Lines of a few words; every tenth line has a word that occurs once."""
    lines = []
    for i in range(700):
        end = f"once{i}" if i % 10 == 0 else "and so on"
        lines.append(f"the naïve {i * i % 23} is Not {i % 7} , {end} .\n")
    return made_once(
        lambda path: path.write_text("".join(lines), "utf-8"),
        "words.txt",
        tmp_path_factory,
    )


@pytest.fixture
def words_run(word_corpus, finished_run):
    """Workdir, output and flags of a run of words with adaptive softmax."""
    return finished_run(
        "words",
        f"--corpus={word_corpus}",
        *TINY,
        "--tokenizer=words",
        "--min_count=2",
        "--cutoffs=6,20",
        "--div_val=2",
        "--max_to_keep=3",
    )
