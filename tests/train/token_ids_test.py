"""Trains, scores and generates token ids that are no text."""

import json

import numpy as np
import pytest
from script_runs import TINY
from script_runs import evaluation_of
from script_runs import metrics_of
from script_runs import results_of


@pytest.fixture(scope="module")
def music(tmp_path_factory):
    """Archive of 60 tunes of unequal lengths, whose ids are from 40 to 80."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 50, 60)
    tunes = [40 + np.cumsum(rng.integers(1, 4, n)) % 41 for n in lengths]
    path = tmp_path_factory.mktemp("music") / "tunes.npz"
    starts = np.cumsum([0, *lengths[:-1]])
    np.savez(path, tokens=np.concatenate(tunes), documents=starts)
    return path


def test_a_run_of_ids_is_scored_and_generates(
    music, succeed, fail, refuse, no_export, tmp_path
):
    run = tmp_path / "run"
    flags = (f"--corpus={music}", *TINY, "--max_steps=7", "--reset_documents")
    fail("main.py", *flags, f"--workdir={run}", messages=["must be ids"])
    printed = succeed(
        "main.py", *flags, f"--workdir={run}", "--tokenizer=ids",
        "--vocabulary_size=90",
    )  # fmt: skip
    assert "a vocabulary of 90" in printed
    assert "bits per token over" in printed
    assert "bits_per_token" in metrics_of(run)[0]
    assert "bits_per_byte" not in results_of(run)["test"]
    sample = (run / "sample.txt").read_text().split()
    assert len(sample) == 40
    assert all(0 <= int(token) < 90 for token in sample)

    # Prompts are numbers or a file; what is written can be a corpus.
    workdir, tune, tunes = f"--workdir={run}", "tune.npy", "tunes.npz"
    output = f"--output={tmp_path / tune}"
    printed = succeed(
        "generate.py", workdir, "--prompt=50, 52 53", "--max_tokens=9", output
    )
    ids = np.load(tmp_path / tune)
    assert ids.dtype == np.int32
    assert ids.tolist() == [int(token) for token in printed.split()]
    assert ids[:3].tolist() == [50, 52, 53]
    assert ids.shape == (12,)
    succeed(
        "generate.py", workdir, f"--prompt={tmp_path / tune}", "--prompt=60",
        "--max_tokens=2", f"--output={tmp_path / tunes}",
    )  # fmt: skip
    written = np.load(tmp_path / tunes)
    assert written["documents"].tolist() == [0, 14]
    assert written["tokens"][:12].tolist() == ids.tolist()
    assert written["tokens"][14] == 60
    assert written["tokens"].shape == (17,)
    succeed(
        "evaluate.py", workdir, f"--corpus={tmp_path / tunes}", "--split=all"
    )
    scores = evaluation_of(run, "all")
    assert scores["num_tokens"] == 17 - 2  # all but the first of each
    assert "bits_per_byte" not in scores

    # === Errors ===
    cases = (
        ([], ["`prompt` must be given for a model of token ids"]),
        (["--prompt=5", "--stop=6"], ["`stop` must not"]),
        (["--prompt=5 six"], ["numbers", "six"]),
        (["--prompt=5 90"], ["90"]),
        (["--prompt=,"], ["at least one token"]),
        (["--prompt=5", "--output=x.txt"], ["`output` must end with .npy"]),
        ([f"--prompt={tmp_path}/no.npy"], ["no.npy"]),
    )
    refuse("generate.py", cases, workdir)
    np.save(tmp_path / "more.npy", np.array([3, 4, 90, 5]))
    more = f"--corpus={tmp_path / 'more.npy'}"
    messages = ["has 90, which", "--vocabulary_size"]
    fail("evaluate.py", workdir, more, "--split=all", messages=messages)
    config = json.loads((run / "tokenizer.json").read_text())["config"]
    assert config == {"vocabulary_size": 90}


def test_text_has_no_file_of_ids(group, fail):
    flags = (f"--workdir={group[0]}", "--output=x.npy")
    fail("generate.py", *flags, messages=["`output` can only be given for"])
