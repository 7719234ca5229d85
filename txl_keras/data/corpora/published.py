"""Published texts, found in a folder or downloaded, and checked when read.

Nothing is looked for until a text is read: ids that were prepared once need no
source.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import os
import sys
import tempfile

import keras
import tensorflow as tf

from txl_keras.data.corpora import files
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.corpus import Text

# Bytes of enwik8 and text8, and of their valid and of their test.
NUM_BYTES = 100_000_000
HELD_OUT_BYTES = 5_000_000


@dataclasses.dataclass(frozen=True)
class Published:
    """Describes the files of a published text, of bytes or of words."""

    url: str  # of the archive
    members: dict  # by split, the name of its file in the archive
    digest: str = None  # hexadecimal MD5 or SHA-256 of a text of bytes
    # By split, the words plus the lines, which papers count as `<eos>`.
    tokens: dict = None


def _bytes(name, digest):
    url = f"http://mattmahoney.net/dc/{name}.zip"
    return Published(url, dict.fromkeys(SPLITS, name), digest)


def _wikitext(number, train_tokens):
    # The authors' URL no longer works (as of 2026).
    folder = f"wikitext-{number}"
    return Published(
        f"https://wikitext.smerity.com/{folder}-v1.zip",
        {split: f"{folder}/wiki.{split}.tokens" for split in SPLITS},
        # From table 1 of the paper, https://arxiv.org/abs/1609.07843.
        tokens={"train": train_tokens, "valid": 217_646, "test": 245_569},
    )


PUBLISHED = {
    # The first 100,000,000 bytes of an English Wikipedia dump of 2006. A symbol
    # is a byte. Published results also drop the newlines: see `drop_newlines`
    # of `txl_keras.data.CharacterTokenizer`.
    "enwik8": _bytes(
        "enwik8",
        "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    ),
    # Wikipedia, reduced to a-z and space. The digest that the `tensorsets`
    # package and several others list.
    "text8": _bytes("text8", "3bea1919949baf155f99411df5fada7e"),
    # Good and featured articles, in words.
    "wikitext103": _wikitext(103, 103_227_021),
    "wikitext2": _wikitext(2, 2_088_628),
    # Penn Treebank as prepared by Mikolov, with 10,000 words; PaddlePaddle's
    # mirror.
    "ptb": Published(
        "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz",
        {split: f"simple-examples/data/ptb.{split}.txt" for split in SPLITS},
        tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
    ),
}


def load(name, data_dir=None, manual_dir=None):
    """Opens a published text as a `Corpus`; its files are found when read."""
    published = PUBLISHED[name]
    manual_dir = files.check_manual_dir(manual_dir)
    found = _Files(published, files.data_folder(data_dir), manual_dir)
    return Corpus(
        name,
        {split: _Text(found, split) for split in SPLITS},
        "utf-8" if published.digest is None else "latin-1",
        # Files are refused unless their text is the published one.
        identity=name,
    )


class _Text(Text):
    """Reads a split, which is one document, again in each iteration."""

    def __init__(self, found, split):
        self._found = found
        self._split = split
        self._bounds = 0, None
        if found.published.digest is not None:
            valid = NUM_BYTES - 2 * HELD_OUT_BYTES
            ends = [0, valid, valid + HELD_OUT_BYTES, NUM_BYTES]
            start, stop = ends[SPLITS.index(split) :][:2]
            self._bounds = start, stop
            self.num_bytes = stop - start

    def __iter__(self):
        path = self._found.paths[self._split]
        yield files.read_bytes(path, *self._bounds)


class _Files:
    """Finds or downloads the files of a text, and checks them, once."""

    def __init__(self, published, data_dir, manual_dir):
        self.published = published
        self._data_dir = data_dir
        self._folder = manual_dir or data_dir
        self._archive = os.path.basename(published.url)

    @functools.cached_property
    def paths(self):
        """Returns the path of the text of each split."""
        for folder in (self._folder, self._data_dir):
            paths = self._find_in(folder)
            if paths is not None:
                return self._checked(paths)
        with tempfile.TemporaryDirectory() as temporary:
            return self._keep(self._checked(self._unpack(temporary)))

    def _find_in(self, folder):
        """Returns the files by split, which may end in `.gz`, or None."""
        members = self.published.members
        # Files may also have just the last part of a member's name.
        bare = {split: os.path.basename(x) for split, x in members.items()}
        for names, suffix in itertools.product((members, bare), ("", ".gz")):
            paths = {
                split: os.path.join(folder, name + suffix)
                for split, name in names.items()
            }
            if all(map(files.is_file, paths.values())):
                return paths
        return None

    def _checked(self, paths):
        """Returns the paths, after a check that the text is the published."""
        if self.published.digest is not None:
            expected = {"train": self.published.digest}
            algorithm = "md5" if len(expected["train"]) == 32 else "sha256"
        else:
            expected = self.published.tokens
            algorithm = "words and line ends"
        for split, value in expected.items():
            path = paths[split]
            if self.published.digest is not None:
                received = files.digest_of(files.read_bytes(path), algorithm)
            else:
                lines = files.read_between(path, b"\n")
                received = sum(len(line.decode().split()) + 1 for line in lines)
            if received != value:
                raise ValueError(
                    f"{path} is damaged or another file. Download it again "
                    f"from {self.published.url}. Expected: {algorithm} "
                    f"{value}. Received: {received}"
                )
        return paths

    def _unpack(self, temporary):
        """Unpacks the archive, which is there or downloaded."""
        archive = os.path.join(self._folder, self._archive)
        try:
            if files.is_file(archive):  # where Keras would download it to
                tf.io.gfile.copy(
                    archive, os.path.join(temporary, self._archive)
                )
            # Keeps Keras's progress bar out of results and logs.
            watched = sys.stderr if sys.stderr.isatty() else io.StringIO()
            with contextlib.redirect_stdout(watched):
                folder = keras.utils.get_file(
                    self._archive,
                    self.published.url,
                    extract=True,
                    cache_dir=temporary,
                    cache_subdir=".",
                )
            paths = self._find_in(folder)
            reason = "it has no such text"
        # Keras raises nothing more specific.
        except Exception as error:  # noqa: BLE001
            paths, reason = None, f"{error}"[:300]
        if paths is None:
            raise ConnectionError(
                f"{self._archive} could not be downloaded or unpacked: "
                f"{reason}. Put it or its unpacked files, which may end in "
                f".gz, in the folder {self._folder}, or pass the folder that "
                "has them as `manual_dir`."
            )
        return paths

    def _keep(self, unpacked):
        """Copies unpacked files to the folder of data; returns their paths."""
        kept = {
            split: os.path.join(self._data_dir, name)
            for split, name in self.published.members.items()
        }
        try:
            for path, source in {kept[x]: unpacked[x] for x in kept}.items():
                tf.io.gfile.makedirs(os.path.dirname(path))
                with files.renamed_when_complete(path) as unfinished:
                    tf.io.gfile.copy(source, unfinished)
        except (OSError, tf.errors.OpError) as error:
            raise files.data_dir_error(self._data_dir, error) from error
        return kept
