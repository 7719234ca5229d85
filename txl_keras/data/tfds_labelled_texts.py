"""Labelled texts from TensorFlow Datasets, such as `imdb_reviews`."""

from txl_keras.data.corpora.tfds_text import find_splits
from txl_keras.data.corpora.tfds_text import is_string
from txl_keras.data.corpora.tfds_text import open_dataset
from txl_keras.data.corpora.tfds_text import tfds
from txl_keras.data.labelled_texts import LabelledTexts


def load_tfds_texts(
    name, data_dir=None, text_column="text", label_column="label"
):
    """Returns `LabelledTexts` of train, valid and test of a TFDS dataset."""
    builder = open_dataset(name, data_dir)
    features = builder.info.features
    for flag, column, is_right, kind in (
        ("text_column", text_column, is_string, "a string"),
        ("label_column", label_column, _is_label, "a class, integer or string"),
    ):
        columns = sorted(key for key in features if is_right(features[key]))
        if column not in columns:
            raise ValueError(
                f"`{flag}` must be a feature of {name} with {kind}, one of "
                f"{columns}. Received: {flag}={column!r}, features "
                f"{sorted(features)}"
            )
    return {
        split: _read(builder, split_name, text_column, label_column)
        for split, split_name in find_splits(builder).items()
    }


def _is_label(feature):
    if feature.shape != ():
        return False
    dtype = feature.tf_dtype
    return dtype.is_integer or dtype.is_bool or is_string(feature)


def _read(builder, split, text_column, label_column):
    name_of = getattr(builder.info.features[label_column], "int2str", _as_text)
    texts, labels = [], []
    for example in tfds.as_numpy(builder.as_dataset(split=split)):
        texts.append(_as_text(example[text_column]))
        labels.append(name_of(example[label_column]))
    return LabelledTexts(
        texts, labels, f"{builder.name} {split}", unit="example"
    )


def _as_text(value):
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
