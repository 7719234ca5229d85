"""Published texts: finds or downloads them, and checks them when read.

Files are looked for when a text is read: ids that were prepared before need no
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
import urllib.parse

import keras

from txl_keras import gfile
from txl_keras.data.corpora import files
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.corpus import Text

# Bytes of enwik8 and text8, and of each of their valid and test splits.
NUM_BYTES = 100_000_000
HELD_OUT_BYTES = 5_000_000


@dataclasses.dataclass(frozen=True)
class Published:
    """Describes the files of a published text, of bytes or of words."""

    url: str  # of the archive
    members: dict  # by split, the name of its file in the archive
    # By split, the words plus the lines, which papers count as `<eos>`. For a
    # text of bytes, the hexadecimal MD5 or SHA-256 of the whole text, as train.
    expected: dict

    @property
    def has_bytes(self):
        return isinstance(self.expected["train"], str)

    @property
    def archive(self):
        return os.path.basename(urllib.parse.unquote(self.url))


def _bytes(name, digest):
    url = f"http://mattmahoney.net/dc/{name}.zip"
    return Published(url, dict.fromkeys(SPLITS, name), {"train": digest})


def _wikitext(number, train_tokens):
    # The authors' URL no longer works (as of 2026).
    folder = f"wikitext-{number}"
    return Published(
        f"https://wikitext.smerity.com/{folder}-v1.zip",
        {split: f"{folder}/wiki.{split}.tokens" for split in SPLITS},
        # From table 1 of the paper, https://arxiv.org/abs/1609.07843.
        {"train": train_tokens, "valid": 217_646, "test": 245_569},
    )


PUBLISHED = {
    # The first 100,000,000 bytes of an English Wikipedia dump of 2006. A symbol
    # is a byte. Published results also drop the newlines: see `drop_newlines`
    # of `txl_keras.data.CharacterTokenizer`.
    "enwik8": _bytes(
        "enwik8",
        "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    ),
    # Wikipedia, reduced to a-z and space. The `tensorsets` package and several
    # others list this digest.
    "text8": _bytes("text8", "3bea1919949baf155f99411df5fada7e"),
    # Good and featured articles, in words.
    "wikitext103": _wikitext(103, 103_227_021),
    "wikitext2": _wikitext(2, 2_088_628),
    # Penn Treebank as prepared by Mikolov, with 10,000 words; PaddlePaddle's
    # mirror.
    "ptb": Published(
        "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz",
        {split: f"simple-examples/data/ptb.{split}.txt" for split in SPLITS},
        {"train": 929_589, "valid": 73_760, "test": 82_430},
    ),
}


def load(name, data_dir=None, manual_dir=None):
    """Opens a published text as a `Corpus`; its files are found when read."""
    text = PUBLISHED[name]
    manual_dir = files.check_manual_dir(manual_dir)
    data_dir = files.data_folder(data_dir)
    found = _Files(text, data_dir, manual_dir or data_dir)
    return Corpus(
        name,
        {split: _Text(found, split) for split in SPLITS},
        "latin-1" if text.has_bytes else "utf-8",
        # Other text in the files is refused.
        identity=name,
    )


@dataclasses.dataclass
class _Files:
    """Finds the files of each split when they are read."""

    text: Published
    data_dir: str
    folder: str

    @functools.cached_property
    def paths(self):  # cached, because the whole text is checked
        return _paths(self.text, self.data_dir, self.folder)


class _Text(Text):
    """Reads a split, which is one document, again in each iteration."""

    def __init__(self, found, split):
        self._files = found
        self._split = split
        self._bounds = 0, None
        if found.text.has_bytes:
            valid = NUM_BYTES - 2 * HELD_OUT_BYTES
            ends = [0, valid, valid + HELD_OUT_BYTES, NUM_BYTES]
            start, stop = ends[SPLITS.index(split) :][:2]
            self._bounds = start, stop
            self.num_bytes = stop - start

    def __iter__(self):
        yield files.read_bytes(self._files.paths[self._split], *self._bounds)


def _paths(text, data_dir, folder):
    """Finds or downloads the files of each split, and checks their text."""
    for place in (folder, data_dir):
        paths = _find_in(place, text.members)
        if paths is not None:
            return _checked(paths, text)
    with tempfile.TemporaryDirectory() as temporary:
        unpacked = _checked(_unpack(text, folder, temporary), text)
        return _keep(unpacked, data_dir, text.members)


def _find_in(folder, members):
    """Returns the files by split, which may end in `.gz`, or None."""
    # Files may also be named by the last part of a member's name.
    for name, suffix in itertools.product((str, os.path.basename), ("", ".gz")):
        paths = {
            split: os.path.join(folder, name(member) + suffix)
            for split, member in members.items()
        }
        if all(map(files.is_file, paths.values())):
            return paths
    return None


def _checked(paths, text):
    """Checks that the text is the published text; returns the paths."""
    for split, expected in text.expected.items():
        path = paths[split]
        if text.has_bytes:
            what = "md5" if len(expected) == 32 else "sha256"
            received = files.digest_of(files.read_bytes(path), what)
        else:
            what = "words and line ends"
            lines = files.read_between(path, b"\n")
            received = sum(len(line.decode().split()) + 1 for line in lines)
        if received != expected:
            raise ValueError(
                f"{path} is damaged or another file. Download it again from "
                f"{text.url}. Expected: {what} {expected}. Received: {received}"
            )
    return paths


def _unpack(text, folder, temporary):
    """Unpacks the archive, which is in the folder or downloaded."""
    name = text.archive
    try:
        archive = os.path.join(folder, name)
        if files.is_file(archive):  # where Keras would download it to
            gfile.copy(archive, os.path.join(temporary, name))
        # Keeps Keras's progress bar out of results and logs.
        watched = sys.stderr if sys.stderr.isatty() else io.StringIO()
        with contextlib.redirect_stdout(watched):
            unpacked = keras.utils.get_file(
                name,
                text.url,
                extract=True,
                cache_dir=temporary,
                cache_subdir=".",
            )
        paths = _find_in(unpacked, text.members)
        reason = "it has no such text"
    # Keras raises nothing more specific.
    except Exception as error:  # noqa: BLE001
        paths, reason = None, f"{error}"[:300]
    if paths is None:
        raise ConnectionError(
            f"{name} could not be downloaded or unpacked: {reason}. Put it or "
            "its unpacked files, which may end in .gz, in the folder "
            f"{folder}, or pass the folder that has them as `manual_dir`."
        )
    return paths


def _keep(unpacked, data_dir, members):
    """Copies unpacked files to the folder of data; returns their paths."""
    kept = {x: os.path.join(data_dir, name) for x, name in members.items()}
    try:
        for source, path in {unpacked[x]: kept[x] for x in kept}.items():
            gfile.makedirs(os.path.dirname(path))
            with files.renamed_when_complete(path) as unfinished:
                gfile.copy(source, unfinished)
    except gfile.errors() as error:
        raise files.data_dir_error(data_dir, error) from error
    return kept
