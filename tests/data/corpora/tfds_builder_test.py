"""Datasets of TFDS are prepared once, whatever stops or joins a run."""

import os

import pytest
from small_texts import SmallTexts

from txl_keras.data.corpora import tfds_text
from txl_keras.data.corpora.tfds_builder import tfds


def load(folder, **options):
    return tfds_text.load("small_texts", str(folder), **options)


def prepared(folder):
    """The folders of datasets, finished or not."""
    return sorted(path.name for path in folder.glob("small_texts/*"))


def numbered(count):
    return lambda self, split, size: (
        (i, {"text": f"{i}", "number": i}) for i in range(count)
    )


def test_order_is_kept_across_files(tmp_path, monkeypatch):
    config = tfds.download.DownloadConfig
    monkeypatch.setattr(
        tfds.download,
        "DownloadConfig",
        lambda **options: config(num_shards=3, **options),
    )
    monkeypatch.setattr(SmallTexts, "_generate_examples", numbered(500))
    corpus = load(tmp_path)
    assert len(list(tmp_path.glob("small_texts/2.0.0/*train*"))) == 3
    assert corpus.read("train").split() == [b"%d" % i for i in range(500)]


def test_a_data_dir_must_be_writable(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="`data_dir`.*`manual_dir`"):
        load(tmp_path / "file")
    # Tests may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="written to.*--data_dir"):
        load(tmp_path / "other")


def test_a_manual_dir_must_be_there(tmp_path):
    with pytest.raises(ValueError, match="`manual_dir` must be a folder"):
        load(tmp_path, manual_dir=str(tmp_path / "nowhere"))


def test_a_run_after_one_that_was_stopped_starts_clean(tmp_path, monkeypatch):
    def stop(self, split, size):
        yield 0, {"text": "begun", "number": 0}
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SmallTexts, "_generate_examples", stop)
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path)
    assert prepared(tmp_path) == []
    # As a killed process leaves it.
    left = tmp_path / "small_texts" / "incomplete.ABCDEF_2.0.0"
    left.mkdir(parents=True)
    (left / "small_texts-train.tfrecord").write_bytes(b"begun")
    assert load(tmp_path).read("test").startswith(b"text test 0\n")
    assert prepared(tmp_path) == ["2.0.0"]


def test_an_incomplete_folder_is_refused(tmp_path):
    (tmp_path / "small_texts" / "2.0.0").mkdir(parents=True)
    with pytest.raises(ValueError, match="not a complete dataset. Delete it"):
        load(tmp_path)


def test_two_runs_may_prepare_the_same(tmp_path, monkeypatch):
    examples, others = SmallTexts._generate_examples, []

    def prepare_meanwhile(self, split, size):
        if not others:
            others.append(None)
            others[0] = load(tmp_path)
        return examples(self, split, size)

    monkeypatch.setattr(SmallTexts, "_generate_examples", prepare_meanwhile)
    corpus = load(tmp_path)
    assert corpus.read("train") == others[0].read("train")
    assert prepared(tmp_path) == ["2.0.0"]
