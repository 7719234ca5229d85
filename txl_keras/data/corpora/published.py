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


@dataclasses.dataclass(frozen=True)
class Published:
    """Describes the files of a published text."""

    urls: tuple  # of the archive: the original, then mirrors
    members: dict  # by split, the name of its text in the archive
    # Hexadecimal MD5 or SHA-256 of the archive, or of a text of bytes.
    digest: str
    # Of a text of bytes, its length and that of valid and of test; of a text of
    # words, by split, the words plus the lines, which papers count as `<eos>`.
    bounds: tuple | None = None
    tokens: dict | None = None
    has_articles: bool = False  # each is a document

    @property
    def algorithm(self):
        return "md5" if len(self.digest) == 32 else "sha256"


def _bytes(name, digest):
    return Published(
        urls=(f"http://mattmahoney.net/dc/{name}.zip",),
        members=dict.fromkeys(SPLITS, name),
        digest=digest,
        bounds=(100_000_000, 5_000_000),
    )


def _wikitext(number, train_tokens, digest):
    # The authors' URL no longer works (as of 2026).
    folder = f"wikitext-{number}"
    return Published(
        urls=(f"https://wikitext.smerity.com/{folder}-v1.zip",),
        members={split: f"{folder}/wiki.{split}.tokens" for split in SPLITS},
        digest=digest,
        # From table 1 of the paper, https://arxiv.org/abs/1609.07843.
        tokens={"train": train_tokens, "valid": 217_646, "test": 245_569},
        has_articles=True,
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
    # Good and featured articles, in words. The digests are those of Julia's
    # CorpusLoaders.jl. (torchtext: MD5 9ddaacaf... and 542ccefa...)
    "wikitext103": _wikitext(
        103,
        103_227_021,
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    ),
    "wikitext2": _wikitext(
        2,
        2_088_628,
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    ),
    # Penn Treebank as prepared by Mikolov, with 10,000 words.
    "ptb": Published(
        urls=(
            "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
            "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz",
        ),
        members={
            split: f"simple-examples/data/ptb.{split}.txt" for split in SPLITS
        },
        # The digest in PaddlePaddle, whose mirror is the second URL.
        digest="30177ea32e27c525793142b6bf2c8e2d",
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
        "utf-8" if published.bounds is None else "latin-1",
        # The files are refused unless their text is the published one.
        identity=[name, published.algorithm, published.digest],
    )


class _Text(Text):
    """Reads the documents of a split, again in each iteration."""

    def __init__(self, found, split):
        self._found = found
        self._split = split
        self._bounds = 0, None
        if found.published.bounds is not None:
            length, held_out = found.published.bounds
            ends = [0, length - 2 * held_out, length - held_out, length]
            start, stop = ends[SPLITS.index(split) :][:2]
            self._bounds = start, stop
            self.num_bytes = stop - start

    def __iter__(self):
        source = self._found.sources[self._split]
        if self._found.published.has_articles:
            lines = files.split_chunks(read_chunks(source), b"\n", source[0])
            yield from split_articles(line + b"\n" for line in lines)
        else:
            yield read_chunks(source, *self._bounds)


class _Files:
    """Finds or downloads the files of a text, and checks them, once."""

    def __init__(self, published, data_dir, manual_dir):
        self.published = published
        self._data_dir = data_dir
        self._folder = manual_dir or data_dir
        self._archive = os.path.basename(published.urls[0])

    @functools.cached_property
    def sources(self):
        """Returns the path of each split's text, and its name in an archive."""
        members = self.published.members
        sources = find_sources(self._folder, self._archive, members)
        if sources is None:
            return self._download()
        self._check(sources)
        return sources

    def _check(self, sources):
        path, member = sources["train"]
        algorithm, expected = self.published.algorithm, self.published.digest
        if self.published.bounds is not None:
            received = files.digest_of(read_chunks((path, member)), algorithm)
        elif member is not None:
            received = files.file_digest(path, algorithm)
        else:
            for split, expected in self.published.tokens.items():
                path, _ = sources[split]
                lines = files.read_between(path, b"\n")
                received = sum(len(line.decode().split()) + 1 for line in lines)
                self._compare(path, "words and line ends", expected, received)
            return
        self._compare(path, algorithm, expected, received)

    def _compare(self, path, what, expected, received):
        if received != expected:
            raise ValueError(
                f"{path} is damaged or another file. Download it again from "
                f"{' or '.join(self.published.urls)}. Expected: {what} "
                f"{expected}. Received: {received}"
            )

    def _download(self):
        failures = []
        for url in self.published.urls:
            with tempfile.TemporaryDirectory() as temporary:
                watched = sys.stderr if sys.stderr.isatty() else io.StringIO()
                try:
                    # Keeps Keras's progress bar out of results and logs.
                    with contextlib.redirect_stdout(watched):
                        path = keras.utils.get_file(
                            self._archive,
                            url,
                            cache_dir=temporary,
                            cache_subdir=".",
                        )
                # Keras raises nothing more specific.
                except Exception as error:  # noqa: BLE001
                    failures.append(f"{error}"[:200])
                    continue
                self._check(in_archive(path, self.published.members))
                return in_archive(self._keep(path), self.published.members)
        raise ConnectionError(
            f"{self._archive} could not be downloaded: {'; '.join(failures)}. "
            f"Put it or its unpacked files, which may end in .gz, in the "
            f"folder {self._folder}, or pass the folder that has them as "
            "`manual_dir`."
        )

    def _keep(self, path):
        """Copies a download to the folder of data; returns its path there."""
        kept = os.path.join(self._data_dir, self._archive)
        try:
            tf.io.gfile.makedirs(self._data_dir)
            with files.renamed_when_complete(kept) as unfinished:
                tf.io.gfile.copy(path, unfinished)
        except (OSError, tf.errors.OpError) as error:
            raise files.data_dir_error(self._data_dir, error) from error
        return kept


# === Texts in files and archives ===


def find_sources(folder, archive, members):
    """Returns the text per split: files, `.gz` or in an archive, or None."""
    # Files may also have just the last part of a member's name.
    bare = {split: os.path.basename(name) for split, name in members.items()}
    for names, suffix in itertools.product((members, bare), ("", ".gz")):
        sources = {
            split: (os.path.join(folder, name + suffix), None)
            for split, name in names.items()
        }
        if all(files.is_file(path) for path, _ in sources.values()):
            return sources
    path = os.path.join(folder, archive)
    return in_archive(path, members) if files.is_file(path) else None


def in_archive(path, members):
    return {split: (path, name) for split, name in members.items()}


def read_chunks(source, start=0, stop=None):
    """Yields bytes `[start, stop)` of a text in chunks up to 1 MiB."""
    with files.open_file(*source) as file:
        yield from files.chunks_of(file, start, stop)


def split_articles(lines):
    """Yields the articles of an iterable of lines, all as `bytes`."""
    # A title is a line ` = Title = ` between blank lines; section titles look
    # like ` = = Section = = `.
    article, titled, before = [], False, b""
    for line, after in itertools.pairwise(itertools.chain(lines, [b""])):
        if _is_title(line) and not before.strip() and not after.strip():
            if titled:
                yield b"".join(article)
                article = []
            titled = True
        article.append(line)
        before = line
    yield b"".join(article)


def _is_title(line):
    words = line.split()
    # A formula may begin with `=`, but does not also end with it.
    return len(words) > 2 and words[0] == words[-1] == b"=" and words[1] != b"="
