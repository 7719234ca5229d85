"""`Corpus`, the return type of all loaders in this folder, and `Block`."""

import dataclasses
import hashlib
import json

from txl_keras.checks import check_one_of

SPLITS = ("train", "valid", "test")
WHOLE = "all"  # the only split of an undivided text
ENCODINGS = ("utf-8", "latin-1")
BLOCK_BYTES = 1 << 20
SECTION_BYTES = 1 << 27


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Holds a text in splits, as bytes that are not yet tokenized.

    A split is a sequence of documents. They are read from their files each
    time, so that a corpus needs no more memory than one of its blocks.

    Args:
        name: String. The name of the corpus in messages and reports.
        splits: Dict of `"train"`, `"valid"` and `"test"`, or of `"all"` for
            text that is only evaluated, to the documents: a list of `bytes`, or
            an object that yields the documents each time it is iterated over
            and has an attribute `num_bytes` for progress bars, their total size
            or None. A document that is too large for memory is an iterable of
            `bytes`. `bytes` alone are one document. Documents are concatenated
            as they are, so each should end with a newline unless the next one
            continues its last line. An object may have a method
            `sections(size)` that returns a list of `Section`s.
        encoding: String, the unit of a symbol. `"utf-8"`: a character.
            `"latin-1"`: a byte, as in enwik8 and text8, whose published results
            count bytes.
        identity: JSON-serializable value that identifies the text without
            reading it, such as files with their sizes and modification times.
            Default: the text itself. If an object of `splits` has a method
            `identity()`, this must be a dict with its result for the split: a
            list whose first item is the list of files, each a list whose first
            item is the path.
        description: String that tells people which files are held out.

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
        empty = [name for name in self.splits if _is_empty(self.splits[name])]
        if empty:
            raise ValueError(
                f"`splits` must not be empty. Received: corpus '{self.name}' "
                f"with no text in {empty}"
            )
        check_one_of("encoding", self.encoding, ENCODINGS)

    def _text(self, split):
        return self.splits[check_one_of("split", split, self.splits)]

    def documents(self, split):
        """Yields the documents of a split: `bytes` or iterables of `bytes`."""
        text = self._text(split)
        return iter((text,) if isinstance(text, bytes) else text)

    def num_bytes(self, split):
        """Returns the approximate bytes of a split, or None if unknown."""
        return _num_bytes(self._text(split))

    def sections(self, split):
        """Returns the parts of a split that can be read independently.

        They depend on the text and not on the machine: each becomes one file of
        ids.

        Args:
            split: String, one of `splits`.

        Returns:
            List of `Section`s, in order. Only one if the text cannot be cut
            without reading it.
        """
        text = self._text(split)
        if hasattr(text, "sections"):
            return text.sections(SECTION_BYTES)
        return [Section((text,) if isinstance(text, bytes) else text)]

    def blocks(self, split, size=BLOCK_BYTES):
        """Yields the text of a split in `Block`s of about equal size.

        Args:
            split: String, one of `splits`.
            size: Integer, the approximate number of bytes per block.

        Yields:
            `Block`s, whose concatenation is the text, byte for byte.
        """
        for number, section in enumerate(self.sections(split)):
            for block in section.blocks(size):
                yield dataclasses.replace(block, section=number)

    def read(self, split):
        """Returns the whole text of a split as `bytes`."""
        return b"".join(block.text for block in self.blocks(split))

    def unknown_symbol_error(self, split, symbol, position):
        """Returns the error for a symbol after `position` tokens of a split."""
        return ValueError(
            f"The {split} split of {self.name} has {symbol!r}, about "
            f"{position:,} tokens after its start, which is not in the "
            "vocabulary. Use a vocabulary of this text, or one with an entry "
            "for unknown words."
        )

    def check_unchanged(self):
        """Raises ValueError if files no longer agree with `identity`."""
        for split, text in self.splits.items():
            if not hasattr(text, "identity"):
                continue
            files, before = text.identity()[0], self.identity[split][0]
            for file, old in zip(files, before, strict=True):
                if file != old:
                    raise ValueError(
                        f"The text of {self.name} was changed while it was "
                        f"read: {file[0]}. Run the same command again when "
                        "no other program writes to it."
                    )

    def fingerprint(self):
        """Returns a SHA-256 that identifies the text of prepared ids."""
        if self.identity is not None:
            content = [self.name, self.encoding, self.identity]
            return hashlib.sha256(json.dumps(content).encode()).hexdigest()
        digest = hashlib.sha256(f"{self.name} {self.encoding}".encode())
        for split in self.splits:
            for block in self.blocks(split):
                lengths = [block.continues, *map(len, block.pieces)]
                digest.update(f"{split} {lengths} ".encode())
                digest.update(block.text)
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Section:
    """Reads some documents of a split, or a part of a large one."""

    # If `continues`, the first document continues the last one of the previous
    # section; if `amid_line`, also its last line.

    documents: object
    continues: bool = False
    amid_line: bool = False

    def blocks(self, size=BLOCK_BYTES):
        """Yields the text in `Block`s of about `size` bytes."""
        return _blocks(iter(self.documents), size, self)


@dataclasses.dataclass(frozen=True)
class Block:
    """Holds a part of a split's text, which ends at a line end if possible."""

    # Each of `pieces`, non-empty `bytes`, is a document or its beginning. If
    # `continues`, the first piece continues the last document of the previous
    # block; if `amid_line`, also its last line.

    pieces: tuple
    continues: bool
    amid_line: bool
    section: int = 0

    @property
    def text(self):
        """Returns all pieces as `bytes`."""
        return b"".join(self.pieces)

    @property
    def num_bytes(self):
        return sum(memoryview(piece).nbytes for piece in self.pieces)


def _num_bytes(text):
    if isinstance(text, bytes):
        return len(text)
    if not isinstance(text, list):
        return text.num_bytes
    sizes = [_num_bytes(document) for document in text]
    return None if None in sizes else sum(sizes)


def _is_empty(text):
    return isinstance(text, (bytes, list)) and not any(text)


def _blocks(documents, size, section):
    pieces, filled = [], 0
    continued, ends_line = section.continues, not section.amid_line
    for document in documents:
        for piece in _pieces(document, size):
            if not pieces:
                continues, amid_line = continued, continued and not ends_line
            elif continued:
                # Only the first piece of a block may continue a document.
                yield Block(tuple(pieces), continues, amid_line)
                pieces, filled = [], 0
                continues, amid_line = True, not ends_line
            pieces.append(piece)
            filled += len(piece)
            continued, ends_line = True, piece.endswith(b"\n")
            if filled >= size:
                yield Block(tuple(pieces), continues, amid_line)
                pieces, filled = [], 0
        continued, ends_line = False, True
    if pieces:
        yield Block(tuple(pieces), continues, amid_line)


def _pieces(document, size):
    """Cuts a document into pieces of at most `size` bytes or slightly more."""
    rest = b""
    for chunk in _chunks(document, size):
        rest += chunk
        if len(rest) >= size:
            end = _boundary(rest)
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _chunks(document, size):
    for text in (document,) if isinstance(document, bytes) else document:
        if not isinstance(text, bytes):
            raise ValueError(
                "Documents must be `bytes`, or iterables of `bytes`. "
                f"Received: {text!r:.40} of type {type(text).__name__}"
            )
        for start in range(0, len(text), size):
            yield text[start : start + size]


def _boundary(text):
    """Returns the position after the last line, else word, else character."""
    spaces = (text.rfind(space) + 1 for space in (b" ", b"\t", b"\r"))
    end = text.rfind(b"\n") + 1 or max(spaces)
    if end:
        return end
    end = len(text) - 1
    # Bytes 10xxxxxx continue a character.
    while end > len(text) - 4 and text[end] & 0xC0 == 0x80:
        end -= 1
    return end
