"""Finished runs that the tests of several scripts begin with."""

import shutil

import pytest
from script_runs import TINY
from script_runs import made_once
from script_runs import output_of_script


def finished_run(name, flags, tmp_path_factory):
    """Trains once for all test files, and copies the run for one of them.

    Returns:
        The workdir of the copy, what training printed, and the flags.
    """

    def train(folder):
        workdir = folder / "workdir"
        printed = output_of_script("main.py", *flags, f"--workdir={workdir}")
        printed = printed.replace(str(workdir), "{workdir}")
        (folder / "printed").write_text(printed, "utf-8")

    folder = made_once(train, f"{name} run", tmp_path_factory)
    workdir = tmp_path_factory.mktemp(name) / "workdir"
    shutil.copytree(folder / "workdir", workdir)
    printed = (folder / "printed").read_text("utf-8")
    printed = printed.replace("{workdir}", str(workdir))
    return workdir, printed, (*flags, f"--workdir={workdir}")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """Workdir, output and flags of a finished run."""
    flags = (f"--corpus={corpus}", *TINY)
    return finished_run("bytes", flags, tmp_path_factory)


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


@pytest.fixture(scope="module")
def words_run(word_corpus, tmp_path_factory):
    """Workdir, output and flags of a run of words with adaptive softmax."""
    flags = (
        f"--corpus={word_corpus}",
        *TINY,
        "--tokenizer=words",
        "--min_count=2",
        "--cutoffs=6,20",
        "--div_val=2",
        "--max_to_keep=3",
    )
    return finished_run("words", flags, tmp_path_factory)
