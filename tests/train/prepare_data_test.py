"""Runs train/prepare_data.py."""

import numpy as np
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
    assert "a vocabulary of 24\n" in printed
    (line,) = (x for x in printed.splitlines() if x.startswith("train "))
    _, num_bytes, tokens, rate, unknown, documents, *lengths = line.split()
    assert documents == "631" and lengths[2] == "12,"
    # Every tenth line has a word that came once, of nine or ten.
    assert float(unknown[:-1]) == pytest.approx(1, rel=0.2)
    sizes = (int(x.replace(",", "")) for x in (num_bytes, tokens))
    assert float(rate) == pytest.approx(np.divide(*sizes), abs=1e-3)


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
