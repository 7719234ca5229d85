"""Datasets of TensorFlow Datasets: prepared once, and read in order."""

import contextlib
import logging
import os
import sys

import tensorflow as tf

from txl_keras.data.corpora.corpus import Section
from txl_keras.data.corpora.files import is_remote

try:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import shuffle
    from tensorflow_datasets.core.download import downloader
    from tensorflow_datasets.core.download.util import DownloadError
except ImportError as error:
    raise ImportError(
        "This corpus needs TensorFlow Datasets, which cannot be imported: "
        f'{error}. Install the extra: `pip install -e ".[datasets]"`, or '
        "`pip install tensorflow-datasets importlib_resources`."
    ) from error

# The default of TFDS, 10 retries, takes 200 seconds without a network.
DOWNLOAD_RETRIES = 3
# Records that TFDS keeps in memory until it writes them. Its default is 1 GB.
BUFFER_BYTES = 1 << 26


class Records:
    """Reads the texts of a prepared split in order, again in each iteration."""

    def __init__(self, builder, split, key="text", read_at_once=1):
        self._builder = builder
        self._split = split
        self._key = key
        self._read_at_once = read_at_once

    @property
    def num_bytes(self):
        """Returns the bytes of the split, or None for a part of a split."""
        info = self._builder.info.splits[self._split]
        return getattr(info, "num_bytes", None)

    def sections(self, size):
        """Returns `Section`s of about `size` bytes, for texts of examples."""
        splits = self._builder.info.splits
        (part,) = tfds.core.ReadInstruction.from_spec(self._split).to_absolute(
            splits
        )
        info = splits[part.splitname]
        number = max(1, size * info.num_examples // (info.num_bytes + 1))
        start = part.from_ or 0
        stop = info.num_examples if part.to is None else part.to
        return [
            Section(
                type(self)(
                    self._builder,
                    f"{part.splitname}[{first}:{min(first + number, stop)}]",
                    self._key,
                    self._read_at_once,
                )
            )
            for first in range(start, stop, number)
        ]

    def __iter__(self):
        dataset = self._builder.as_dataset(
            split=self._split,
            shuffle_files=False,
            read_config=tfds.ReadConfig(
                interleave_cycle_length=1,  # one file after the other
                try_autocache=False,  # it would hold all text in memory
                skip_prefetch=True,
            ),
        )
        dataset = dataset.map(lambda example: example[self._key])
        for texts in dataset.batch(self._read_at_once).as_numpy_iterator():
            yield from texts


def identify(builder):
    """Returns a JSON-serializable value that identifies a prepared dataset."""
    return {
        "builder": builder.info.full_name,  # with its version
        "splits": {
            split: [info.num_examples, int(info.num_bytes)]
            for split, info in builder.info.splits.items()
        },
    }


def prepare(make_builder, manual_dir=None):
    """Makes a builder and prepares its dataset if it is not prepared yet."""
    builder = make_builder()
    if not builder.data_path.exists():
        builder = _prepare(make_builder, manual_dir)
    if not builder.info.splits:
        raise ValueError(
            f"{builder.data_dir} is not a complete dataset. Delete it and run "
            "again."
        )
    return builder


def describe_failure(error):
    """Describes in a few words why a download failed."""
    if isinstance(error, DownloadError):
        return str(error)
    url = getattr(error.request, "url", "unknown address")
    return f"{url} ({type(error).__name__})"


def _prepare(make_builder, manual_dir):
    builder = make_builder()
    data_dir = os.fspath(builder.data_dir_root)
    _check_writable(data_dir)
    is_given = manual_dir is not None
    manual_dir = os.path.expanduser(manual_dir or data_dir)
    is_folder = tf.io.gfile.isdir(manual_dir)
    if not is_folder or (is_given and not tf.io.gfile.listdir(manual_dir)):
        raise ValueError(
            "`manual_dir` must be a folder with files of the corpus. "
            f"Received: manual_dir={manual_dir!r}"
        )
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        with _lean_settings():
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(
                    manual_dir=manual_dir
                )
            )
    except Exception:
        # Another process may have prepared the same dataset meanwhile.
        builder = make_builder()
        if not builder.data_path.exists():
            raise
    _remove_leftovers(builder)
    return builder


def _check_writable(data_dir):
    try:
        tf.io.gfile.makedirs(data_dir)
        # Whether a bucket is writable shows only when it is written to.
        writable = is_remote(data_dir) or os.access(data_dir, os.W_OK)
    except (OSError, tf.errors.OpError):
        writable = False
    if not writable:
        raise ValueError(
            "`data_dir` must be a folder that can be written to (--data_dir on "
            "the command line); pass a read-only folder with files of the "
            "corpus as `manual_dir` (--manual_dir). "
            f"Received: data_dir={data_dir!r}"
        )


@contextlib.contextmanager
def _lean_settings():
    """Lets TFDS retry less often and keep less text in memory."""
    retries, buffer = downloader.MAX_RETRIES, shuffle.MAX_MEM_BUFFER_SIZE
    log = logging.getLogger("urllib3")  # logs a warning for each retry
    level = log.level
    downloader.MAX_RETRIES = DOWNLOAD_RETRIES
    shuffle.MAX_MEM_BUFFER_SIZE = BUFFER_BYTES
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        downloader.MAX_RETRIES = retries
        shuffle.MAX_MEM_BUFFER_SIZE = buffer
        log.setLevel(level)


def _remove_leftovers(builder):
    """Removes incomplete folders that killed runs left."""
    folder, version = os.path.split(builder.data_dir)
    pattern = os.path.join(folder, f"incomplete.*_{version}")
    for path in tf.io.gfile.glob(pattern):
        tf.io.gfile.rmtree(path)
