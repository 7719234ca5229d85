"""`Corpus`, the return type of all loaders in this folder, and its parts."""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from txl_keras.checks import check_one_of
from txl_keras.data.corpora.files import json_digest

SPLITS = ("train", "valid", "test")
WHOLE = "all"  # the only split of an undivided text
ENCODINGS = ("utf-8", "latin-1", "ids")
BLOCK_BYTES = 1 << 20
SECTION_BYTES = 1 << 27


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Holds a text in splits, as bytes that are not yet tokenized.

    A split is a sequence of documents. They are read from their files each
    time, so that a corpus needs no more memory than one of its blocks.

    Args:
        name: String. The name of the corpus in messages and reports.
        splits: Dict with the keys `"train"`, `"valid"` and `"test"`, or `"all"`
            for text that is only evaluated. A value is one document as `bytes`,
            a list of `bytes`, or an object that yields the documents each time
            it is iterated over. A document that is too large for memory is an
            iterable of `bytes`. Documents are concatenated without separators,
            so each should end with a newline.
        encoding: String, the unit of a symbol. `"utf-8"`: a character.
            `"latin-1"`: a byte, as in enwik8 and text8, where published results
            count bytes. `"ids"`: a token id, in files of token ids.
        identity: JSON-serializable value that identifies the text without
            reading it, such as files with their sizes and modification times.
            Default: the text itself.
        description: String that describes which files are held out.

    Example:

    >>> corpus = Corpus("tiny", {"train": b"abc", "valid": b"d", "test": b"e"})
    >>> corpus.read("train")
    b'abc'
    """

    name: str
    splits: dict
    encoding: str = "utf-8"
    identity: object = None
    description: str = ""

    def __post_init__(self):
        if set(self.splits) not in (set(SPLITS), {WHOLE}):
            raise ValueError(
                f"`splits` must have the keys {list(SPLITS)}, or '{WHOLE}'. "
                f"Received: {list(self.splits)}"
            )
        empty = [x for x in self.splits if self.text(x).num_bytes == 0]
        if empty:
            raise ValueError(
                f"{self.name} must have text for each split: give more text, "
                "as documents are not cut, check `document_separator`, or fill "
                "or remove empty files. "
                f"Received: no text in {empty}"
            )
        check_one_of("encoding", self.encoding, ENCODINGS)

    def text(self, split: str) -> "Text":
        """Returns a split as a `Text`, which yields its documents."""
        text = self.splits[check_one_of("split", split, self.splits)]
        return text if isinstance(text, Text) else Text(text)

    def blocks(self, split: str) -> Iterator:
        """Returns the text of a split in `Block`s of about 1 MiB."""
        return self.text(split).blocks()

    def read(self, split: str) -> bytes:
        """Returns the whole text of a split as `bytes`."""
        return b"".join(block.text for block in self.blocks(split))

    def fingerprint(self) -> str:
        """Returns a SHA-256 that identifies the text of prepared ids."""
        if self.identity is not None:
            return json_digest([self.name, self.encoding, self.identity])
        digest = hashlib.sha256(f"{self.name} {self.encoding}".encode())
        for split in self.splits:
            for block in self.blocks(split):
                lengths = [block.continues, *map(len, block.pieces)]
                digest.update(f"{split} {lengths} ".encode())
                digest.update(block.text)
        return digest.hexdigest()


class Text:
    """A split or section: reads its documents when it is iterated over."""

    num_bytes = None  # approximate size, if it is known

    def __init__(self, documents):
        if isinstance(documents, bytes):
            documents = [documents]
        self._documents = documents
        self.num_bytes = getattr(documents, "num_bytes", None)
        if isinstance(documents, list) and {*map(type, documents)} <= {bytes}:
            self.num_bytes = sum(map(len, documents))

    @property
    def num_text_bytes(self):
        """Returns the approximate size when unpacked, if it is known."""
        return self.num_bytes

    def __iter__(self):
        return iter(self._documents)

    def sections(self):
        """Splits this text into `Text`s of about `SECTION_BYTES`."""
        return [self]

    def blocks(self):
        """Yields the text in `Block`s of about `BLOCK_BYTES` bytes."""
        pieces, continues, amid_line, filled = [], False, False, 0
        for document in self:
            for i, piece in enumerate(_cut(document)):
                # Only the first piece of a block may continue a document.
                if pieces and (i or filled >= BLOCK_BYTES):
                    yield Block(pieces, continues, amid_line)
                    continues = i > 0
                    amid_line = continues and not pieces[-1].endswith(b"\n")
                    pieces, filled = [], 0
                pieces.append(piece)
                filled += len(piece)
        if pieces:
            yield Block(pieces, continues, amid_line)


class Block(NamedTuple):
    """Holds a part of a split's text, which ends at a line end if possible."""

    # Each piece is a document or its beginning. If `continues`, the first piece
    # continues the last document of the previous block; if `amid_line`, also
    # the last line.

    pieces: list  # `bytes`, or arrays of token ids, none of them empty
    continues: bool
    amid_line: bool = False

    @property
    def text(self):
        """Returns all pieces as `bytes`."""
        return b"".join(self.pieces)

    @property
    def num_bytes(self):
        return sum(memoryview(piece).nbytes for piece in self.pieces)


def _cut(document):
    """Cuts a document into pieces of about `BLOCK_BYTES` bytes or less."""
    rest = b""
    for text in [document] if isinstance(document, bytes) else document:
        if not isinstance(text, bytes):
            raise ValueError(
                "Documents must be `bytes`, or iterables of `bytes`. "
                f"Received: {text!r:.40} of type {type(text).__name__}"
            )
        for start in range(0, len(text), BLOCK_BYTES):
            rest += text[start : start + BLOCK_BYTES]
            if len(rest) >= BLOCK_BYTES:
                end = _boundary(rest)
                yield rest[:end]
                rest = rest[end:]
    if rest:
        yield rest


def _boundary(text):
    """Returns the end of the last line, else word, else character."""
    # The last character may be incomplete. Bytes 10xxxxxx continue a character.
    start = len(text.rstrip(bytes(range(0x80, 0xC0)))) - 1
    # Before a space: some tokenizers trim spaces at the end of a text.
    word = max(0, text.rfind(b" "))
    return text.rfind(b"\n") + 1 or word or max(1, start)
