"""`Corpus`, what every loader in this folder returns, and its `Block`s."""

import dataclasses
import hashlib
import json

SPLITS = ("train", "valid", "test")
WHOLE = "all"  # the one split of a text that is not cut
ENCODINGS = ("utf-8", "latin-1")
BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in splits, as bytes and not yet as tokens.

    A split is a sequence of documents, read from where they lie each time it
    is asked for, so a corpus takes no more memory than one of its blocks.

    Args:
        name: String. What the corpus is called in messages and reports.
        splits: Dict of `"train"`, `"valid"` and `"test"`, or of `"all"` for
            text that is only evaluated, to the documents: a list of `bytes`;
            or an object that yields them, in order, each time it is iterated
            over, with an attribute `num_bytes`, of their sum or None, for
            progress bars. A document that is too long to be held at once is
            an iterable of `bytes`. `bytes` alone are one document.
            Documents follow each other as they are: those that should not run
            together end with a newline.
        encoding: String, what one symbol of the text is. `"utf-8"`: a
            character. `"latin-1"`: a byte, as in enwik8 and text8, whose
            published results count bytes.
        identity: What JSON can hold and the text is recognised by without
            being read, such as files with their sizes and times of change.
            Default: the text itself. If an object of `splits` has a method
            `identity()`, what it returns is here by the name of the split: a
            list that begins with a list of its files, each a list that begins
            with the path.

    Raises:
        ValueError: If a split is missing, unknown or empty, or if the
            encoding is neither of the two.

    Example:

    >>> corpus = Corpus("tiny", {"train": b"abc", "valid": b"d", "test": b"e"})
    >>> corpus.read("train")
    b'abc'
    """

    name: str
    splits: dict
    encoding: str = "utf-8"
    identity: object = None

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
        if self.encoding not in ENCODINGS:
            raise ValueError(
                f"`encoding` must be one of {list(ENCODINGS)}. "
                f"Received: encoding={self.encoding!r}"
            )

    def documents(self, split):
        """Yields the documents of a split: `bytes` or iterables of them."""
        text = self.splits[split]
        return iter((text,) if isinstance(text, bytes) else text)

    def num_bytes(self, split):
        """About how many bytes a split has, or None where that is unknown."""
        return _num_bytes(self.splits[split])

    def blocks(self, split, size=BLOCK_BYTES):
        """Yields the text of a split in `Block`s of about equal size.

        Args:
            split: String, one of `splits`.
            size: Integer, about how many bytes a block has.

        Yields:
            `Block`s. One after the other they are the text, byte for byte.
        """
        return _blocks(self.documents(split), size)

    def read(self, split):
        """Returns the whole text of a split at once, as `bytes`."""
        return b"".join(block.text for block in self.blocks(split))

    def check_unchanged(self):
        """Raises ValueError if files are no longer what `identity` says."""
        for split, text in self.splits.items():
            if not hasattr(text, "identity"):
                continue
            files, before = text.identity()[0], self.identity[split][0]
            for file, old in zip(files, before, strict=True):
                if file != old:
                    raise ValueError(
                        f"The text of {self.name} was changed while it was "
                        f"read: {file[0]}. Run the same command again when "
                        "nothing writes to it."
                    )

    def fingerprint(self):
        """A SHA-256 by which prepared ids are known to be of this text."""
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
class Block:
    """Some text of a split, cut at a line end if there is one.

    Args:
        pieces: Tuple of `bytes`, none of them empty. Each is the beginning of
            a document, all of it, or, for the first, perhaps what follows.
        continues: Boolean. The first piece goes on with the document that the
            block before ended in.
        amid_line: Boolean. It goes on with its line, too.
    """

    pieces: tuple
    continues: bool
    amid_line: bool

    @property
    def text(self):
        """`bytes`, all pieces."""
        return b"".join(self.pieces)

    @property
    def num_bytes(self):
        return sum(map(len, self.pieces))


def _num_bytes(text):
    if isinstance(text, bytes):
        return len(text)
    if not isinstance(text, list):
        return text.num_bytes
    sizes = [_num_bytes(document) for document in text]
    return None if None in sizes else sum(sizes)


def _is_empty(text):
    return isinstance(text, (bytes, list)) and not any(text)


def _blocks(documents, size):
    pieces, filled = [], 0
    continues = amid_line = False
    for document in documents:
        goes_on, ends_line = False, True
        for piece in _pieces(document, size):
            if not pieces:
                continues, amid_line = goes_on, goes_on and not ends_line
            elif goes_on:
                # Only the first piece of a block may continue a document.
                yield Block(tuple(pieces), continues, amid_line)
                pieces, filled = [], 0
                continues, amid_line = True, not ends_line
            pieces.append(piece)
            filled += len(piece)
            goes_on, ends_line = True, piece.endswith(b"\n")
            if filled >= size:
                yield Block(tuple(pieces), continues, amid_line)
                pieces, filled = [], 0
    if pieces:
        yield Block(tuple(pieces), continues, amid_line)


def _pieces(document, size):
    """Cuts a document in pieces of at most `size` bytes or little more."""
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
    """Where to cut: after a line, else after a word, else a character."""
    spaces = (text.rfind(space) + 1 for space in (b" ", b"\t", b"\r"))
    end = text.rfind(b"\n") + 1 or max(spaces)
    if end:
        return end
    end = len(text) - 1
    # Bytes 10xxxxxx continue a character.
    while end > len(text) - 4 and text[end] & 0xC0 == 0x80:
        end -= 1
    return end
