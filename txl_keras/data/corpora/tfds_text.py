"""Loads texts, also labelled ones, from TensorFlow Datasets by name."""

import dataclasses
import difflib
import os
import sys

from txl_keras.backend import tf
from txl_keras.checks import check_one_of
from txl_keras.data.corpora import corpus
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.corpus import Text
from txl_keras.data.corpora.files import CHUNK_BYTES
from txl_keras.data.corpora.files import check_manual_dir
from txl_keras.data.labelled_texts import LabelledTexts

try:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.util import DownloadError
except ImportError as error:
    raise ImportError(
        "This corpus needs TensorFlow Datasets, which cannot be imported: "
        f'{error}. Install the extra: `pip install -e ".[datasets]"`, or '
        "`pip install tensorflow-datasets importlib_resources`."
    ) from error

_VALID_NAMES = ("validation", "valid", "val", "dev")
# Splits of a dataset that only has train.
PARTS = {
    "train": "train[:90%]",
    "valid": "train[90%:95%]",
    "test": "train[95%:]",
}


def load(name, data_dir=None, manual_dir=None, text_key=None):
    """Opens a TFDS dataset as a `Corpus`, and prepares it the first time."""
    # The order of TFDS is kept; it is always the same. Without a validation
    # split, test is used for it, as is usual for `lm1b`, and vice versa.
    # Without both, the last tenth of train is split.
    builder = _open(name, data_dir, manual_dir)
    texts = _features(builder, _is_string)
    key = text_key
    if key is None and ("text" in texts or len(texts) == 1):
        key = "text" if "text" in texts else texts[0]
    check_one_of("text_key", key, texts)
    found = _find_splits(builder)
    splits = {"valid": found.get("test"), "test": found.get("valid"), **found}
    if len(found) == 1:
        splits = PARTS
    sizes = {
        split: [info.num_examples, int(info.num_bytes)]
        for split, info in builder.info.splits.items()
    }
    return Corpus(
        f"tfds:{name}",
        {split: _Documents(builder, splits[split], key) for split in SPLITS},
        identity={
            "builder": builder.info.full_name,  # with its version
            "splits": sizes,
            "text_key": key,
        },
        description=f"valid is {splits['valid']!r}; test is {splits['test']!r}",
    )


@dataclasses.dataclass(frozen=True)
class _Documents(Text):
    """Reads the texts of a split in order, again in each iteration."""

    builder: object
    split: object
    key: str

    @property
    def num_bytes(self):
        """Returns the bytes of the split, or None for a part of a split."""
        return self.builder.info.splits[self.split].num_bytes or None

    def sections(self):
        examples = self.builder.info.splits[self.split].num_examples
        number = -(-examples * self._example_bytes // corpus.SECTION_BYTES)
        parts = tfds.even_splits(self.split, min(number, examples))
        return [dataclasses.replace(self, split=part) for part in parts]

    @property
    def _example_bytes(self):
        train = self.builder.info.splits["train"]
        return train.num_bytes // train.num_examples + 1

    def __iter__(self):
        dataset = self.builder.as_dataset(
            split=self.split,
            shuffle_files=False,
            read_config=tfds.ReadConfig(
                interleave_cycle_length=1,  # one file after another
                try_autocache=False,  # it would hold all text in memory
                skip_prefetch=True,
            ),
        )
        dataset = dataset.map(lambda example: example[self.key])
        # About 1 MB at a time: single sentences take three times as long.
        dataset = dataset.batch(max(1, CHUNK_BYTES // self._example_bytes))
        for texts in dataset.as_numpy_iterator():
            for text in texts:
                yield text if text.endswith(b"\n") else text + b"\n"


def _open(name, data_dir=None, manual_dir=None):
    """Returns the builder of a dataset; prepares it the first time."""
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:  # it lists hundreds of others
        near = difflib.get_close_matches(name, tfds.list_builders())
        raise ValueError(
            "`corpus` must be tfds: and the name of a TFDS dataset, maybe "
            f"{near}. Received: {name!r}"
        ) from None
    if builder.data_path.exists():
        return builder
    folder = os.fspath(builder.data_dir_root)
    config = tfds.download.DownloadConfig(
        manual_dir=check_manual_dir(manual_dir) or folder
    )
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        builder.download_and_prepare(download_config=config)
    except (OSError, DownloadError, tf.errors.OpError) as error:
        raise OSError(
            f"The TFDS dataset {name!r} could not be downloaded and prepared: "
            f"{type(error).__name__}: {str(error)[:300]}. `data_dir` "
            "(--data_dir) must be a folder that can be written to. Without a "
            "network, prepare it elsewhere and copy its folder there. "
            f"Received: data_dir={folder!r}"
        ) from None
    return builder


def _features(builder, is_kind):
    """Returns the names of a dataset's features of a kind."""
    features = builder.info.features
    return [key for key in features if is_kind(features[key])]


def _is_string(feature):
    """Returns whether a feature of a dataset is one string per example."""
    return feature.shape == () and feature.tf_dtype == tf.string


def _find_splits(builder):
    """Returns a dataset's names of train and, if present, valid and test."""
    infos = builder.info.splits
    if "train" not in infos:
        raise ValueError(
            f"{builder.name} must have a split 'train'; delete its folder if "
            f"it is incomplete. Received: {list(infos)} in {builder.data_dir}"
        )
    valid = next((split for split in _VALID_NAMES if split in infos), None)
    names = {"train": "train", "valid": valid, "test": "test"}
    return {split: name for split, name in names.items() if name in infos}


def load_labelled_texts(
    name, data_dir=None, text_column="text", label_column="label"
):
    """Returns `LabelledTexts` of train, valid and test of a TFDS dataset.

    Examples without a label are left out, and so is a split that has no others.
    """
    builder = _open(name, data_dir)
    check_one_of("text_column", text_column, _features(builder, _is_string))
    check_one_of("label_column", label_column, _features(builder, _is_label))
    feature = builder.info.features[label_column]
    name_of = getattr(feature, "int2str", _as_text)
    splits = {}
    for split, split_name in _find_splits(builder).items():
        texts, labels, left_out = [], [], 0
        for example in tfds.as_numpy(builder.as_dataset(split=split_name)):
            label = example[label_column]
            # A class is -1 where the publisher keeps the labels of a test.
            if name_of is not _as_text and label < 0:
                left_out += 1
                continue
            texts.append(_as_text(example[text_column]))
            labels.append(name_of(label))
        source = f"{builder.name} {split_name}"
        if left_out:
            print(
                f"{source}: {left_out:,} of {left_out + len(texts):,} examples "
                "are left out, without a label."
            )
        if texts or not left_out:
            splits[split] = LabelledTexts(texts, labels, source)
    return splits


def _is_label(feature):
    dtype = feature.tf_dtype
    is_number = feature.shape == () and (dtype.is_integer or dtype.is_bool)
    return is_number or _is_string(feature)


def _as_text(value):
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
