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
import tarfile
import tempfile
import typing
import zipfile

import keras
import tensorflow as tf

from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.files import DAMAGED
from txl_keras.data.corpora.files import check_manual_dir
from txl_keras.data.corpora.files import chunks_of
from txl_keras.data.corpora.files import damaged_file_error
from txl_keras.data.corpora.files import data_dir_error
from txl_keras.data.corpora.files import data_folder
from txl_keras.data.corpora.files import digest_of
from txl_keras.data.corpora.files import file_digest
from txl_keras.data.corpora.files import is_file
from txl_keras.data.corpora.files import open_file
from txl_keras.data.corpora.files import renamed_when_complete


@dataclasses.dataclass(frozen=True)
class Published:
    """Describes the files of a published text."""

    urls: tuple  # of the archive: the original, then mirrors
    files: str  # what may be there instead, for messages
    members: dict  # by split, the name of its text in the archive
    # Algorithm and hexadecimal digest of the archive, or of a text of bytes.
    digest: tuple
    # Of a text of bytes, its length and that of valid and of test; of a text of
    # words, by split, the words plus the lines, which papers count as `<eos>`.
    bounds: tuple | None = None
    tokens: dict | None = None
    has_articles: bool = False  # each is a document


def _bytes(name, digest):
    return Published(
        urls=(f"http://mattmahoney.net/dc/{name}.zip",),
        files=f"{name}.zip, {name}.gz or {name}",
        members=dict.fromkeys(SPLITS, name),
        digest=digest,
        bounds=(100_000_000, 5_000_000),
    )


def _wikitext(number, digest, train_tokens):
    folder = f"wikitext-{number}"
    return Published(
        urls=(
            # The authors' URL, which no longer works (as of 2026).
            "https://s3.amazonaws.com/research.metamind.io/wikitext/"
            f"{folder}-v1.zip",
            f"https://wikitext.smerity.com/{folder}-v1.zip",
        ),
        files=f"{folder}-v1.zip, a folder {folder}, or the wiki.*.tokens",
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
        (
            "sha256",
            "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        ),
    ),
    # Wikipedia, reduced to a-z and space. The digest that the `tensorsets`
    # package and several others list.
    "text8": _bytes("text8", ("md5", "3bea1919949baf155f99411df5fada7e")),
    # Good and featured articles, in words. The digests are those of Julia's
    # CorpusLoaders.jl. (torchtext: MD5 9ddaacaf... and 542ccefa...)
    "wikitext103": _wikitext(
        103,
        (
            "sha256",
            "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        ),
        103_227_021,
    ),
    "wikitext2": _wikitext(
        2,
        (
            "sha256",
            "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        ),
        2_088_628,
    ),
    # Penn Treebank as prepared by Mikolov, with 10,000 words.
    "ptb": Published(
        urls=(
            "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
            "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz",
        ),
        files="simple-examples.tgz, a folder simple-examples, or the ptb.*.txt",
        members={
            split: f"simple-examples/data/ptb.{split}.txt" for split in SPLITS
        },
        # The digest in PaddlePaddle, whose mirror is the second URL.
        digest=("md5", "30177ea32e27c525793142b6bf2c8e2d"),
        tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
    ),
}


def load(name, data_dir=None, manual_dir=None):
    """Opens a published text as a `Corpus`; its files are found when read."""
    published = PUBLISHED[name]
    manual_dir = check_manual_dir(manual_dir)
    files = _Files(published, data_folder(data_dir), manual_dir)
    return Corpus(
        name,
        {split: _Text(files, split) for split in SPLITS},
        "utf-8" if published.bounds is None else "latin-1",
        # The files are refused unless their text is the published one.
        identity=[name, *published.digest],
    )


class _Text:
    """Reads the documents of a split, again in each iteration."""

    def __init__(self, files, split):
        self._files = files
        self._split = split

    @property
    def num_bytes(self):
        """Returns the bytes of the split, or None if they are not known."""
        start, stop = self._bounds()
        return None if stop is None else stop - start

    def _bounds(self):
        if self._files.published.bounds is None:
            return 0, None
        length, held_out = self._files.published.bounds
        ends = [0, length - 2 * held_out, length - held_out, length]
        number = SPLITS.index(self._split)
        return ends[number], ends[number + 1]

    def __iter__(self):
        source = self._files.sources[self._split]
        if self._files.published.has_articles:
            yield from split_articles(read_lines(source))
        else:
            yield read_chunks(source, *self._bounds())


class _Files:
    """Finds or downloads the files of a text, and checks them, once."""

    def __init__(self, published, data_dir, manual_dir):
        self.published = published
        self._data_dir = data_dir
        self._manual_dir = manual_dir

    @functools.cached_property
    def sources(self):
        """Returns the `Source` of each split."""
        members = self.published.members
        archive = os.path.basename(self.published.urls[0])
        folder = self._manual_dir or self._data_dir
        sources = find_sources(folder, archive, members)
        if sources is None:
            return self._download(archive, folder)
        self._check(sources)
        return sources

    def _check(self, sources):
        text = sources["train"]
        algorithm, expected = self.published.digest
        if self.published.bounds is not None:
            received = digest_of(read_chunks(text), algorithm)
        elif text.member is not None:
            received = file_digest(text.path, algorithm)
        else:
            for split, expected in self.published.tokens.items():
                counts = expected, self._count_tokens(sources[split])
                words = [f"{count:,} words and line ends" for count in counts]
                self._compare(sources[split], *words)
            return
        digests = (f"{algorithm} {digest}" for digest in (expected, received))
        self._compare(text.path, *digests)

    def _count_tokens(self, source):
        try:
            return sum(
                len(line.decode().split()) + 1 for line in read_lines(source)
            )
        except UnicodeDecodeError as error:
            self._compare(source, "UTF-8", error)

    def _compare(self, path, expected, received):
        if received != expected:
            raise ValueError(
                f"{path} is damaged or another file. Download it again from "
                f"{' or '.join(self.published.urls)}. Expected: {expected}. "
                f"Received: {received}"
            )

    def _download(self, archive, folder):
        failures = []
        for url in self.published.urls:
            with tempfile.TemporaryDirectory() as temporary:
                try:
                    with _quiet_unless_watched():
                        path = keras.utils.get_file(
                            archive, url, cache_dir=temporary, cache_subdir="."
                        )
                # Keras raises nothing more specific.
                except Exception as error:  # noqa: BLE001
                    failures.append(f"{error}"[:200])
                    continue
                self._check(self._in_archive(path))
                path = self._keep(path, archive)
            return self._in_archive(path)
        raise ConnectionError(
            f"{archive} could not be downloaded: {'; '.join(failures)}. Put "
            f"{self.published.files} in the folder {folder}, or pass the "
            "folder that has it as `manual_dir`."
        )

    def _in_archive(self, path):
        return sources_in_archive(path, self.published.members)

    def _keep(self, path, archive):
        """Copies a download to the folder of data; returns its path there."""
        kept = os.path.join(self._data_dir, archive)
        try:
            tf.io.gfile.makedirs(self._data_dir)
            with renamed_when_complete(kept) as unfinished:
                tf.io.gfile.copy(path, unfinished)
        except (OSError, tf.errors.OpError) as error:
            raise data_dir_error(self._data_dir, error) from error
        return kept


def _quiet_unless_watched():
    """Keeps Keras's progress bar out of results and logs."""
    is_watched = sys.stderr.isatty()
    return contextlib.redirect_stdout(
        sys.stderr if is_watched else io.StringIO()
    )


# === Texts in files and archives ===


class Source(typing.NamedTuple):
    """Locates a text: a file, or the member `member` of an archive."""

    path: str
    member: str | None = None

    def __str__(self):
        return self.path if self.member is None else "/".join(self)


def find_sources(folder, archive, members):
    """Returns the `Source` per split of files, `.gz` or an archive, or None."""
    # Files may also have just the last part of a member's name.
    for suffix in ("", ".gz"):
        sources = {
            split: Source(os.path.join(folder, name + suffix))
            for split, name in members.items()
        }
        if all(is_file(source.path) for source in sources.values()):
            return sources
    path = os.path.join(folder, archive)
    if is_file(path):
        return sources_in_archive(path, members)
    bare = {split: os.path.basename(name) for split, name in members.items()}
    return None if bare == members else find_sources(folder, archive, bare)


def sources_in_archive(path, members):
    """Returns the `Source` of each split in an archive."""
    return {split: Source(path, name) for split, name in members.items()}


def read_chunks(source, start=0, stop=None):
    """Yields bytes `[start, stop)` of a `Source` in chunks up to 1 MiB."""
    with _open_source(source) as file:
        yield from chunks_of(file, start, stop)


def read_lines(source):
    """Yields the lines of a `Source`, as `bytes` with their newlines."""
    rest = b""
    for chunk in read_chunks(source):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


@contextlib.contextmanager
def _open_source(source):
    if source.member is None:
        with open_file(source.path) as file:
            yield file
        return
    open_member = _open_zip if source.path.endswith(".zip") else _open_tar
    try:
        with (
            tf.io.gfile.GFile(source.path, "rb") as archive,
            open_member(archive, source.member) as file,
        ):
            yield file
    except (
        *DAMAGED,
        zipfile.BadZipFile,
        tarfile.TarError,
        tf.errors.InvalidArgumentError,  # shorter than the end of a zip file
    ) as error:
        raise damaged_file_error(source.path, error) from error
    except KeyError as error:
        raise ValueError(
            f"{source.path} must contain a file '{source.member}'."
        ) from error


@contextlib.contextmanager
def _open_zip(archive, member):
    with zipfile.ZipFile(archive) as unpacked, unpacked.open(member) as file:
        yield file


@contextlib.contextmanager
def _open_tar(archive, member):
    with tarfile.open(fileobj=archive, mode="r:gz") as unpacked:
        for info in unpacked:
            # Names may begin with `./`.
            if os.path.normpath(info.name) == member:
                yield unpacked.extractfile(info)
                return
    raise KeyError(member)


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
