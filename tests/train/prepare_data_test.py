"""Runs train/prepare_data.py."""

import json

import pytest


@pytest.fixture
def options(word_corpus, tmp_path):
    """Flags of the text, of its tokenizer and of an own data folder."""
    return (
        f"--corpus={word_corpus}",
        f"--data_dir={tmp_path}",
        "--document_separator=\\n",
        "--tokenizer=words",
        "--min_count=2",
    )


def test_prepared_text_is_described(options, succeed, tmp_path):
    printed = succeed("prepare_data.py", *options)
    (path,) = tmp_path.rglob("statistics.json")
    statistics = json.loads(path.read_text())
    train = statistics["splits"]["train"]
    assert statistics["vocabulary_size"] == 24
    assert train["num_documents"] == 631
    # Every tenth line has a word that came once, of nine or ten.
    assert train["unknown_rate"] == pytest.approx(0.01, rel=0.2)
    assert train["document_length"]["max"] == 12
    assert f"{train['num_tokens']:,}" in printed


def test_flags_of_prepared_text_are_checked_before_it_is_read(
    corpus, refuse, tmp_path
):
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = (
        (
            ["--vocabulary=no/file", "--tokenizer=words"],
            ["`vocabulary` no/file: There is no file"],
        ),
        ([f"--vocabulary={corpus}"], ["`tokenizer` must be given"]),
        (
            [f"--vocabulary={corpus}", "--tokenizer=bytes"],
            [f"`vocabulary` {corpus}", "bytes"],
        ),
        (["--document_separator="], ["`document_separator`", "empty"]),
        (
            ["--corpus=enwik8", f"--manual_dir={empty}"],
            ["`manual_dir`", str(empty)],
        ),
    )
    flags = f"--corpus={corpus}", f"--data_dir={tmp_path / 'data'}"
    refuse("prepare_data.py", cases, *flags)
