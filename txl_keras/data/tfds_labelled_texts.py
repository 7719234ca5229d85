"""Labelled texts from TensorFlow Datasets, such as `imdb_reviews`."""

import numpy as np

from txl_keras.checks import shown
from txl_keras.data.corpora.tfds_builder import tfds
from txl_keras.data.corpora.tfds_text import find_splits
from txl_keras.data.corpora.tfds_text import open_dataset
from txl_keras.data.labelled_texts import LabelledTexts


def load_tfds_texts(
    name, data_dir=None, text_column="text", label_column="label"
):
    """Returns `LabelledTexts` of train, valid and test of a TFDS dataset."""
    builder = open_dataset(name, data_dir)
    features = builder.info.features
    for flag, column in (
        ("text_column", text_column),
        ("label_column", label_column),
    ):
        if column not in features:
            raise ValueError(
                f"`{flag}` must be a feature of {name}, one of "
                f"{sorted(features)}. Received: {flag}={column!r}"
            )
    return {
        split: _read(builder, split_name, text_column, label_column)
        for split, split_name in find_splits(builder).items()
    }


def _read(builder, split, text_column, label_column):
    pairs = [
        (example[text_column], example[label_column])
        for example in tfds.as_numpy(builder.as_dataset(split=split))
    ]
    feature = builder.info.features[label_column]
    name_of = getattr(feature, "int2str", _as_string)
    return LabelledTexts(
        [_text(text) for text, _ in pairs],
        [name_of(label) for _, label in pairs],
        f"{builder.name} {split}",
        unit="example",
    )


def _text(value):
    if not isinstance(value, bytes):
        raise ValueError(
            "`text_column` must be a feature of strings. "
            f"Received: {shown(value)}"
        )
    return value.decode("utf-8")


def _as_string(label):
    if isinstance(label, bytes):
        return label.decode("utf-8")
    if np.ndim(label) or np.asarray(label).dtype.kind not in "iub":
        raise ValueError(
            "`label_column` must be a feature with a class, an integer or a "
            f"string. Received: {shown(label)}"
        )
    return str(label)
