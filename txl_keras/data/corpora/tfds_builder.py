"""Base class of the corpora that TFDS prepares.

Finds or downloads the published files of a corpus, checks them, writes their
text as records, and reads it back in order.
"""

import contextlib
import logging
import os
import sys

import requests
import tensorflow as tf

from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.corpus import Section
from txl_keras.data.corpora.files import file_digest
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.published_files import find_sources
from txl_keras.data.corpora.published_files import read_lines
from txl_keras.data.corpora.published_files import sources_in_archive

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
# TFDS then sorts records on disk into 1000 parts of [0, 2**128) by their keys
# and reads one part at a time, so the keys are distributed over that range.
_KEY_SHIFT = 108


class TextBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes the published text of a corpus as records, in order.

    The files are taken from `manual_dir` if present, compressed or not, and are
    downloaded otherwise. A subclass defines the URLs, the expected content, and
    how a text is divided into records. The name of a subclass ends in `Corpus`:
    TFDS writes to a folder of that name, so that `enwik8` can still name a
    file.
    """

    # Must change when the written records change.
    VERSION = tfds.core.Version("1.0.0")
    URLS = ()  # of the archive: the original, then mirrors
    MEMBERS = {}  # by split, the name of its text in the archive
    ARCHIVE_DIGEST = None  # algorithm and hexadecimal digest
    TOKENS = {}  # by split, its number of words plus its number of lines
    ENCODING = "utf-8"  # as for `Corpus`
    ONE_DOCUMENT = True  # False: each record of a split is a document

    @classmethod
    def load(cls, data_dir=None, manual_dir=None):
        """Opens the corpus as a `Corpus`, and prepares it the first time."""
        builder = prepare(lambda: cls(data_dir=data_dir), manual_dir)
        splits = {split: Records(builder, split) for split in SPLITS}
        if cls.ONE_DOCUMENT:
            splits = {split: [records] for split, records in splits.items()}
        name = builder.name.removesuffix("_corpus")
        return Corpus(name, splits, cls.ENCODING, identify(builder))

    def check(self, sources):
        """Checks the digest of an archive and the tokens per split."""
        path, member = sources["train"]
        if member:
            algorithm, expected = self.ARCHIVE_DIGEST
            digest = file_digest(path, algorithm)
            if digest != expected:
                raise self.mismatch_error(
                    path, f"{algorithm} {expected}", f"{algorithm} {digest}"
                )
        for split, expected in self.TOKENS.items():
            tokens = self._count_tokens(sources[split])
            if tokens != expected:
                raise self.mismatch_error(
                    sources[split],
                    f"{expected:,} words and line ends",
                    f"{tokens:,}",
                )

    def records(self, source, split):
        """Yields the text of a split as `bytes`, one item per record."""
        raise NotImplementedError

    def mismatch_error(self, path, expected, received):
        """Returns the error for a file that is not the published one."""
        return ValueError(
            f"{path} is damaged or another file. Download it again from "
            f"{' or '.join(self.URLS)}. Expected: {expected}. "
            f"Received: {received}"
        )

    def _count_tokens(self, source):
        try:
            # Published results count `<eos>` at the end of each line.
            return sum(
                len(line.decode().split()) + 1 for line in read_lines(source)
            )
        except UnicodeDecodeError as error:
            raise self.mismatch_error(source, "UTF-8", error) from error

    def _info(self):
        # Not `features.Text`, because a record may end inside a character.
        text = tfds.features.Tensor(shape=(), dtype=tf.string)
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict({"text": text}),
            homepage=self.URLS[0],
            # Otherwise TFDS writes records in the order of their hashes.
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        folder = os.fspath(dl_manager.manual_dir)
        archive = os.path.basename(self.URLS[0])
        sources = find_sources(folder, archive, self.MEMBERS)
        if sources:
            self.check(sources)
        else:
            sources = self._download(dl_manager, folder, archive)
        return {
            split: self._generate_examples(sources[split], split)
            for split in SPLITS
        }

    def _generate_examples(self, source, split):
        for number, text in enumerate(self.records(source, split)):
            yield number << _KEY_SHIFT, {"text": text}

    def _download(self, dl_manager, folder, archive):
        failures = []
        for url in self.URLS:
            try:
                path = os.fspath(dl_manager.download(url))
            except (requests.RequestException, DownloadError) as error:
                failures.append(describe_failure(error, url))
                continue
            sources = sources_in_archive(path, self.MEMBERS)
            try:
                self.check(sources)
            except ValueError:
                # Otherwise TFDS would use it the next time.
                tf.io.gfile.remove(path)
                tf.io.gfile.remove(f"{path}.INFO")
                raise
            return sources
        raise ConnectionError(
            f"{archive} could not be downloaded: {'; '.join(failures)}. Put "
            f"{self.MANUAL_DOWNLOAD_INSTRUCTIONS} in the folder {folder}, or "
            "pass the folder that has it as `manual_dir`."
        )


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


def describe_failure(error, url=None):
    """Describes in a few words why a download failed."""
    if isinstance(error, DownloadError):
        return str(error)
    url = url or getattr(error.request, "url", "unknown address")
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
