"""Loads any text dataset of TFDS by its name."""

import difflib

import requests
import tensorflow as tf

from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.files import CHUNK_BYTES
from txl_keras.data.corpora.tfds_builder import DownloadError
from txl_keras.data.corpora.tfds_builder import Records
from txl_keras.data.corpora.tfds_builder import describe_failure
from txl_keras.data.corpora.tfds_builder import identify
from txl_keras.data.corpora.tfds_builder import prepare
from txl_keras.data.corpora.tfds_builder import tfds

_VALID_NAMES = ("validation", "valid", "val", "dev")
# Splits of a dataset that only has train.
PARTS = {
    "train": "train[:90%]",
    "valid": "train[90%:95%]",
    "test": "train[95%:]",
}


def load(name, data_dir=None, manual_dir=None, text_key=None):
    """Opens a TFDS dataset as a `Corpus`, and prepares it the first time."""
    # The order is that of TFDS and always the same. If there is no validation
    # split, test is used for it, as is usual for `lm1b`, and vice versa; if
    # there is neither, the last tenth of train.
    builder = open_dataset(name, data_dir, manual_dir)
    key = _text_feature(builder, text_key)
    splits = _choose_splits(builder)
    # About 1 MB at a time: single sentences take three times as long.
    train = builder.info.splits["train"]
    read_at_once = CHUNK_BYTES * train.num_examples // (train.num_bytes + 1)
    return Corpus(
        f"tfds:{name}",
        {
            split: Documents(builder, splits[split], key, max(1, read_at_once))
            for split in SPLITS
        },
        identity={**identify(builder), "text_key": key},
        description=f"valid is {splits['valid']!r}; test is {splits['test']!r}",
    )


class Documents(Records):
    """Yields the records of a split, each with a newline at its end."""

    def __iter__(self):
        for text in super().__iter__():
            yield text if text.endswith(b"\n") else text + b"\n"


def open_dataset(name, data_dir=None, manual_dir=None):
    """Returns the builder of a dataset, and prepares it the first time."""
    try:
        return prepare(lambda: _find(name, data_dir), manual_dir)
    except (requests.RequestException, DownloadError) as error:
        raise ConnectionError(
            f"The TFDS dataset {name!r} could not be downloaded: "
            f"{describe_failure(error)}. Prepare it on a machine with network "
            "access and copy its folder to `data_dir`. "
            f"Received: data_dir={data_dir!r}"
        ) from None


def _find(name, data_dir):
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        near = difflib.get_close_matches(name.split("/")[0], known, n=5)
        raise ValueError(
            f"`name` must be a dataset of TFDS. Similar: {near}. "
            f"All: https://www.tensorflow.org/datasets/catalog. "
            f"Received: name={name!r}"
        ) from error


def _text_feature(builder, text_key):
    features = builder.info.features
    texts = [key for key in features if _is_text(features[key])]
    if text_key is None and ("text" in texts or len(texts) == 1):
        return "text" if "text" in texts else texts[0]
    if text_key not in texts:
        raise ValueError(
            f"`text_key` must name the feature of {builder.name} that holds "
            f"the text, one of {texts}. Received: text_key={text_key!r}, "
            f"features {sorted(features)}"
        )
    return text_key


def _is_text(feature):
    return feature.tf_dtype == tf.string and feature.shape == ()


def find_splits(builder):
    """Returns a dataset's names of train and, if present, valid and test."""
    infos = builder.info.splits
    if "train" not in infos:
        raise ValueError(
            f"{builder.name} must have a split 'train'. Received: {list(infos)}"
        )
    valid = next((split for split in _VALID_NAMES if split in infos), None)
    names = {"train": "train", "valid": valid, "test": "test"}
    return {split: name for split, name in names.items() if name in infos}


def _choose_splits(builder):
    infos, found = builder.info.splits, find_splits(builder)
    splits = {"valid": found.get("test"), "test": found.get("valid"), **found}
    if len(found) == 1:
        splits = PARTS
    sizes = {split: infos[splits[split]].num_examples for split in SPLITS}
    if not all(sizes.values()):
        raise ValueError(
            f"{builder.name} has too few examples for three splits. "
            f"Received: {sizes}"
        )
    return splits
