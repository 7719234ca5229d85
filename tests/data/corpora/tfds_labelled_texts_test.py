import numpy as np
import pytest
import tensorflow_datasets as tfds
from small_texts import SmallTexts

from txl_keras.data.corpora.tfds_text import load_labelled_texts


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
    splits = load_labelled_texts(
        "small_reviews", str(tmp_path), label_column=column
    )
    assert list(splits) == ["train", "test"]
    test = splits["test"]
    assert test.texts == ["né test 0", "né test 1", "né test 2"]
    assert test.labels[: len(label)] == label
    assert test.place(2) == "small_reviews test, example 2"
    assert len(splits["train"]) == 7


@pytest.mark.parametrize("wrong", ["body", "score"])
@pytest.mark.parametrize("flag", ["text_column", "label_column"])
def test_columns_must_be_features_of_their_kind(tmp_path, flag, wrong):
    message = f"`{flag}` must .*'text'.*'language'.*{flag}='{wrong}'"
    with pytest.raises(ValueError, match=message):
        load_labelled_texts("small_reviews", str(tmp_path), **{flag: wrong})
