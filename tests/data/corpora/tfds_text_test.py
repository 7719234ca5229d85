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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Datasets as they are by default, which are prepared once."""
    return str(tmp_path_factory.mktemp("datasets"))


def load(folder, name="small_texts", **options):
    return tfds_text.load(name, str(folder), **options)


def lines(split, size, key="text"):
    return [f"{key} {split} {i}\n".encode() for i in range(size)]


def test_an_example_is_a_document_with_a_newline(folder):
    corpus = load(folder)
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


def test_the_identity_is_that_of_dataset_and_feature(folder, tmp_path, small):
    corpus = load(folder)
    assert corpus.identity["builder"] == "small_texts/2.0.0"
    assert corpus.identity["splits"]["train"][0] == 30
    assert corpus.identity["text_key"] == "text"
    assert corpus.fingerprint() == load(folder).fingerprint()
    small(KEYS=("text", "title"))
    titles = load(tmp_path, text_key="title")
    assert titles.fingerprint() != corpus.fingerprint()


@pytest.mark.parametrize("name", ["dev", "test"])
def test_one_held_out_split_serves_as_valid_and_test(name, tmp_path, small):
    small(SPLITS={"train": 2, name: 3})
    corpus = load(tmp_path)
    for split in ("valid", "test"):
        assert list(corpus.text(split)) == lines(name, 3)
    assert corpus.description == f"valid is {name!r}; test is {name!r}"


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
    monkeypatch.setattr(corpus_module, "SECTION_BYTES", 700)
    corpus = load(tmp_path)
    assert len(list(tmp_path.glob("small_texts/2.0.0/*train*"))) == 3
    # The end of train is held out, because there is nothing else.
    sections = corpus.text("train").sections()
    assert len(sections) > 2 and len(corpus.text("valid").sections()) == 1
    train = [text for section in sections for text in section]
    valid, test = list(corpus.text("valid")), list(corpus.text("test"))
    assert [len(part) for part in (train, valid, test)] == [54, 3, 3]
    assert train + valid + test == lines("train", 60)


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
def test_splits_have_texts_with_labels(folder, column, label):
    splits = tfds_text.load_labelled_texts(
        "small_reviews", folder, label_column=column
    )
    assert list(splits) == ["train", "test"]
    test = splits["test"]
    assert test.texts == ["né test 0", "né test 1", "né test 2"]
    assert test.labels[: len(label)] == label
    assert test.name == "small_reviews test"
    assert len(splits["train"]) == 7


def test_examples_without_a_label_are_left_out(tmp_path, monkeypatch, capsys):
    generate = SmallReviews._generate_examples

    def without_labels(self, split, size):
        for i, example in generate(self, split, size):
            is_hidden = split == "test" or i == 2
            yield i, {**example, **({"label": -1} if is_hidden else {})}

    monkeypatch.setattr(SmallReviews, "_generate_examples", without_labels)
    splits = tfds_text.load_labelled_texts("small_reviews", str(tmp_path))
    assert list(splits) == ["train"]
    assert splits["train"].texts[1:3] == ["né train 1", "né train 3"]
    assert len(splits["train"].labels) == 6
    printed = capsys.readouterr().out
    assert "train: 1 of 7 examples are left out" in printed
    assert "test: 3 of 3 examples are left out" in printed


@pytest.mark.parametrize("wrong", ["body", "score"])
@pytest.mark.parametrize("flag", ["text_column", "label_column"])
def test_columns_must_be_features_of_their_kind(folder, flag, wrong):
    message = f"`{flag}` must .*'text'.*'language'.*{flag}='{wrong}'"
    with pytest.raises(ValueError, match=message):
        tfds_text.load_labelled_texts("small_reviews", folder, **{flag: wrong})
