import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds
from small_texts import SmallTexts

from txl_keras.data.corpora import corpus as corpus_module
from txl_keras.data.corpora import tfds_text


@pytest.fixture
def small(monkeypatch):
    """Sets what the dataset `small_texts` has."""

    def configure(**attributes):
        for name, value in attributes.items():
            monkeypatch.setattr(SmallTexts, name, value)

    return configure


def load(folder, name="small_texts", **options):
    return tfds_text.load(name, str(folder), **options)


def lines(split, size, key="text"):
    return [f"{key} {split} {i}\n".encode() for i in range(size)]


def test_an_example_is_a_document_with_a_newline(tmp_path):
    corpus = load(tmp_path)
    assert list(corpus.text("train")) == lines("train", 30)
    assert list(corpus.text("valid")) == lines("validation", 3)
    assert list(corpus.text("test")) == lines("test", 4)
    assert (corpus.name, corpus.encoding) == ("tfds:small_texts", "utf-8")


def test_a_newline_that_is_there_is_not_doubled(tmp_path, monkeypatch):
    def examples(self, split, size):
        yield 0, {"text": "one\n", "number": 1}
        yield 1, {"text": "two\n\n", "number": 2}

    monkeypatch.setattr(SmallTexts, "_generate_examples", examples)
    assert load(tmp_path).read("train") == b"one\ntwo\n\n"


def test_the_identity_is_that_of_dataset_and_feature(tmp_path, small):
    corpus = load(tmp_path)
    assert corpus.identity["builder"] == "small_texts/2.0.0"
    assert corpus.identity["splits"]["train"][0] == 30
    assert corpus.identity["text_key"] == "text"
    assert corpus.fingerprint() == load(tmp_path).fingerprint()
    small(KEYS=("text", "title"))
    titles = load(tmp_path / "other", text_key="title")
    assert titles.fingerprint() != corpus.fingerprint()


@pytest.mark.parametrize(
    "splits, valid, test",
    [
        ({"train": 2, "dev": 3, "test": 1}, "dev", "test"),
        ({"train": 2, "validation": 3}, "validation", "validation"),
        ({"train": 2, "test": 3}, "test", "test"),
    ],
)  # fmt: skip
def test_other_names_serve_as_valid_and_test(
    splits, valid, test, tmp_path, small
):
    small(SPLITS=splits)
    corpus = load(tmp_path)
    for split, name in (("valid", valid), ("test", test)):
        assert list(corpus.text(split)) == lines(name, splits[name])
    assert corpus.description == f"valid is {valid!r}; test is {test!r}"


def test_the_end_of_train_is_held_out_if_there_is_nothing_else(tmp_path, small):
    small(SPLITS={"train": 40})
    corpus = load(tmp_path)
    parts = [list(corpus.text(s)) for s in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [36, 2, 2]
    assert sum(parts, []) == lines("train", 40)


def test_a_dataset_without_train_is_refused(tmp_path, small):
    small(SPLITS={"test": 3})
    with pytest.raises(ValueError, match=r"'train'.* Received: \['test'\]"):
        load(tmp_path)


def test_one_of_two_strings_must_be_named(tmp_path, small):
    small(KEYS=("story",))
    corpus = load(tmp_path / "one")
    assert list(corpus.text("test")) == lines("test", 4, "story")
    small(KEYS=("question", "answer"))
    with pytest.raises(ValueError, match="text_key") as error:
        load(tmp_path)
    for part in ("'question'", "'answer'", "None"):
        assert part in str(error.value)
    with pytest.raises(ValueError, match="text_key='number'"):
        load(tmp_path, text_key="number")
    corpus = load(tmp_path, text_key="answer")
    assert list(corpus.text("test")) == lines("test", 4, "answer")
    (tmp_path / "left" / "small_texts" / "2.0.0").mkdir(parents=True)
    with pytest.raises(ValueError, match="delete its folder if it is incompl"):
        load(tmp_path / "left", text_key="answer")


def test_without_network_the_error_is_short(tmp_path, monkeypatch):
    def get(session, url, **kwargs):
        raise requests.ConnectionError(f"no way to {url}, " + "long story" * 99)

    monkeypatch.setattr(requests.Session, "get", get)
    with pytest.raises(OSError, match="Without a network") as error:
        load(tmp_path, "tiny_shakespeare")
    assert "raw.githubusercontent.com" in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert len(str(error.value)) < 700


# === Preparation ===


def test_order_is_kept_across_files_and_sections(tmp_path, monkeypatch):
    config = tfds.download.DownloadConfig
    monkeypatch.setattr(
        tfds.download,
        "DownloadConfig",
        lambda **options: config(num_shards=3, **options),
    )
    monkeypatch.setattr(SmallTexts, "SPLITS", {"train": 60})
    monkeypatch.setattr(corpus_module, "SECTION_BYTES", 300)
    corpus = load(tmp_path)
    assert len(list(tmp_path.glob("small_texts/2.0.0/*train*"))) == 3
    for split, begin, end in (("train", 0, 54), ("valid", 54, 57)):
        expected = lines("train", 60)[begin:end]
        assert list(corpus.text(split)) == expected
        sections = corpus.text(split).sections()
        assert (len(sections) > 2) == (split == "train")
        found = [text for s in sections for text in s]
        assert found == expected


# === Labelled texts ===


class SmallReviews(SmallTexts):
    """Reviews with a class, a number and a string that may all be labels."""

    SPLITS = {"train": 7, "test": 3, "unsupervised": 2}

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "text": tfds.features.Text(),
                    "label": tfds.features.ClassLabel(names=["bad", "good"]),
                    "stars": np.int64,
                    "language": tfds.features.Text(),
                    "score": np.float32,
                }
            ),
            disable_shuffling=True,
        )

    def _generate_examples(self, split, size):
        for i in range(size):
            labels = {"label": i % 2, "stars": i % 5, "language": "fr"}
            yield i, {"text": f"né {split} {i}", **labels, "score": 0.5}


@pytest.mark.parametrize(
    "column,label",
    [("label", ["bad", "good"]), ("stars", ["0", "1"]), ("language", ["fr"])],
)
def test_splits_have_texts_with_labels(tmp_path, column, label):
    splits = tfds_text.load_labelled_texts(
        "small_reviews", str(tmp_path), label_column=column
    )
    assert list(splits) == ["train", "test"]
    test = splits["test"]
    assert test.texts == ["né test 0", "né test 1", "né test 2"]
    assert test.labels[: len(label)] == label
    assert test.name == "small_reviews test"
    assert len(splits["train"]) == 7


@pytest.mark.parametrize("wrong", ["body", "score"])
@pytest.mark.parametrize("flag", ["text_column", "label_column"])
def test_columns_must_be_features_of_their_kind(tmp_path, flag, wrong):
    message = f"`{flag}` must .*'text'.*'language'.*{flag}='{wrong}'"
    with pytest.raises(ValueError, match=message):
        tfds_text.load_labelled_texts(
            "small_reviews", str(tmp_path), **{flag: wrong}
        )
