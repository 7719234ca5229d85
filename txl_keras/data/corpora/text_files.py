"""The user's own text or token ids: files on disk or in a bucket."""

import dataclasses
import itertools
import json
import os

import tensorflow as tf

from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import WHOLE
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.corpus import Section
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import modification_time
from txl_keras.data.corpora.files import read_bytes
from txl_keras.data.corpora.files import read_text
from txl_keras.data.corpora.files import rough_size
from txl_keras.data.corpora.id_files import ID_SUFFIXES
from txl_keras.data.corpora.id_files import IdCorpus
from txl_keras.data.corpora.id_files import is_id_file
from txl_keras.data.corpora.id_files import split_ids
from txl_keras.data.corpora.splitting import cuts
from txl_keras.data.corpora.splitting import drop_duplicates
from txl_keras.data.corpora.splitting import grouped
from txl_keras.data.corpora.splitting import split_file
from txl_keras.data.corpora.splitting import split_groups

_JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", ".tokens", *_JSON_LINES, *ID_SUFFIXES)
SPLIT_NAMES = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
MAX_DOCUMENT_BYTES = 1 << 30  # between separators: must fit in memory
# Errors that a line raises if it is not a JSON object with a text.
_PARSE_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)


def load(path, document_separator=None, text_key="text", whole=False):
    """Finds and splits the files of a text, reading as little as possible."""
    # docs/data.md has the rules. Files are in the order of their paths.
    if document_separator == "":
        raise ValueError(
            "`document_separator` must be None or have at least one "
            "character. Received: document_separator=''"
        )
    separator = document_separator and document_separator.encode("utf-8")
    try:
        parts = _split(path, separator, whole)
    except UnicodeError as error:  # in a file name; no text is decoded here
        raise ValueError(
            f"{path} must have files whose names are UTF-8: rename the others. "
            f"Received: {error.object!r}"
        ) from error
    splits = {
        split: TextFiles(tuple(parts), separator, text_key, len(parts) > 1)
        for split, parts in parts.items()
    }
    is_ids = _are_ids(path, splits)
    if is_ids and document_separator:
        raise ValueError(
            "`document_separator` is for text: documents of token ids are rows "
            "of a matrix, or begin where the entry `documents` of an .npz file "
            f"says. Received: document_separator={document_separator!r}"
        )
    empty = [split for split in splits if not splits[split].num_bytes]
    if empty:
        size = sum(text.num_bytes for text in splits.values())
        raise ValueError(
            f"The text in {path} is too small for three splits: "
            f"{' and '.join(empty)} would be empty, as no document is cut. "
            f"Received: {size} {'ids' if is_ids else 'bytes'}, "
            f"document_separator={document_separator!r}"
        )
    return (IdCorpus if is_ids else Corpus)(
        path,
        splits,
        identity={split: text.identity() for split, text in splits.items()},
    )


def _are_ids(path, splits):
    """Returns whether all files are of token ids, rather than of text."""
    files = [part.path for files in splits.values() for part in files.parts]
    ids = [file for file in files if is_id_file(file)]
    text = [file for file in files if not is_id_file(file)]
    if ids and text:
        raise ValueError(
            f"{path} must have files of token ids (.npy, .npz), or files of "
            f"text: remove the others. Received: {ids[0]} and {text[0]}"
        )
    return bool(ids)


@dataclasses.dataclass(frozen=True)
class Part:
    """Holds bytes or ids `[start, stop)` of a file; `stop` None is its end."""

    # If `continues`, these continue the document of the part before; if
    # `continued`, the part after continues this one.

    path: str
    start: int = 0
    stop: int = None
    continues: bool = False
    continued: bool = False

    @property
    def num_bytes(self):
        """Returns the bytes to read; for a whole `.gz` the compressed size."""
        if self.stop is None:
            return tf.io.gfile.stat(self.path).length - self.start
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """Reads the documents of some files of text, again in each iteration."""

    parts: tuple
    separator: bytes
    text_key: str
    ends_lines: bool

    @property
    def num_bytes(self):
        return sum(part.num_bytes for part in self.parts)

    def identity(self):
        """Returns the files with sizes and times, and the options, for JSON."""
        files = []
        for part in self.parts:
            size = tf.io.gfile.stat(part.path).length
            time = modification_time(part.path)
            files.append([part.path, part.start, part.stop, size, time])
        options = [self.separator and self.separator.decode(), self.text_key]
        return [files, options]

    def sections(self, size):
        """Returns `Section`s of about `size` bytes; cuts at line ends."""
        # Neither `.gz` files nor JSON lines nor texts between separators are
        # cut.
        parts = [
            piece for part in self.parts for piece in self._cut(part, size)
        ]
        return [
            Section(
                dataclasses.replace(self, parts=tuple(group)),
                group[0].continues,
                group[0].continues and not _begins_line(group[0]),
            )
            for group in grouped(parts, size)
        ]

    def __iter__(self):
        for part in self.parts:
            if _is_json_lines(part.path):
                yield from _json_documents(part, self.text_key)
            elif self.separator:
                yield from _separated_documents(part, self.separator)
            else:
                ends_line = self.ends_lines and not part.continued
                yield _whole_file(part, ends_line)

    def _cut(self, part, size):
        """Yields the pieces of a part, each of about `size` bytes."""
        delimiter = _delimiter(part.path, self.separator)
        begins = []
        if not part.path.lower().endswith(".gz"):
            stop = part.start + part.num_bytes
            begins = cuts(part.path, part.start, stop, size, delimiter)
        bounds = [part.start, *begins, part.stop]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            yield dataclasses.replace(
                part,
                start=start,
                stop=stop,
                continues=delimiter is None and number > 0,
                continued=delimiter is None and number < len(begins),
            )


def _split(path, separator, whole):
    """Returns a dict of split to a list of `Part`s."""
    if whole:
        return {WHOLE: [Part(file) for file in _find_files(path)]}
    if tf.io.gfile.isdir(path):
        named = _named_splits(path)
        if named:
            return {
                split: [Part(file) for file in files]
                for split, files in named.items()
            }
    files = _find_files(path)
    if len(files) >= len(SPLITS):
        root = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
        # By relative paths: the result must not depend on the folder's place.
        names = {os.path.relpath(file, root): file for file in files}
        sizes = {name: files[file] for name, file in names.items()}
        return {
            split: [Part(names[name]) for name in sorted(chosen)]
            for split, chosen in split_groups(sizes).items()
        }
    splits = {split: [] for split in SPLITS}
    for file in files:
        places = (
            split_ids(file)
            if is_id_file(file)
            else split_file(file, _delimiter(file, separator))
        )
        for split, (start, stop) in places.items():
            if start < stop:
                splits[split].append(Part(file, start, stop))
    return splits


def _named_splits(folder):
    """Returns a dict of split to its files by their names, or an empty one."""
    found = {}
    for name in sorted(tf.io.gfile.listdir(folder)):
        parts = name.rstrip("/").split(".")
        if not parts[0]:
            continue  # hidden
        splits = {SPLIT_NAMES[part] for part in parts if part in SPLIT_NAMES}
        if len(splits) == 1:
            found.setdefault(splits.pop(), []).append(name)
    if len(found) < len(SPLITS):
        # One name alone may be any file, and so may train.py and test.py.
        names = [n for names in found.values() for n in names if _is_text(n)]
        if len(found) == 2 and names:
            raise ValueError(
                f"{folder} must have files or folders for all of train, valid "
                f"and test, or for none. Received: only {' and '.join(names)}"
            )
        return {}
    return {
        split: [
            file
            for name in names
            for file in _find_files(os.path.join(folder, name.rstrip("/")))
        ]
        for split, names in found.items()
    }


def _is_text(name):
    return _uncompressed(name).endswith((*SUFFIXES, "/"))


def _find_files(path):
    """Returns a dict of the text's paths to their sizes, in order."""
    if tf.io.gfile.isdir(path):
        paths = _files_below(path)
    elif tf.io.gfile.exists(path):
        paths = [path]
    else:
        paths = [p for p in tf.io.gfile.glob(path) if not tf.io.gfile.isdir(p)]
    # Decompressed sizes, so that a file and its .gz are found to be equal.
    sizes = {p: rough_size(p) for p in sorted(paths)}
    sizes = {p: size for p, size in sizes.items() if size}
    if not sizes:
        raise ValueError(
            f"{path} must be, or contain, at least one file with text. "
            "Received: no files, or only empty and hidden ones"
        )
    return drop_duplicates(sizes, read_bytes)


def _files_below(folder, above=()):
    """Yields the files in a folder and its subfolders, except hidden ones."""
    place = folder if is_remote(folder) else os.path.realpath(folder)
    if place in above:
        raise ValueError(
            f"{folder} must not be a link to a folder that contains it, which "
            f"is an endless loop: remove it. Received: a link to {place}"
        )
    for name in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        if name.startswith("."):
            continue
        if tf.io.gfile.isdir(path):
            yield from _files_below(path, (*above, place))
        else:
            yield path


def _is_json_lines(path):
    return _uncompressed(path).endswith(_JSON_LINES)


def _uncompressed(name):
    """Returns the name of a file in lower case, without `.gz`."""
    return name.lower().removesuffix(".gz")


def _delimiter(path, separator):
    """Returns what separates the documents of a file, or None."""
    return b"\n" if _is_json_lines(path) else separator


def _begins_line(part):
    return b"".join(read_bytes(part.path, part.start - 1, part.start)) == b"\n"


def _whole_file(part, ends_line):
    """Yields a file in chunks; with `ends_line`, ends it with a newline."""
    chunk = b"\n"
    for chunk in read_text(part.path, part.start, part.stop):
        yield chunk
    if ends_line and not chunk.endswith(b"\n"):
        yield b"\n"  # otherwise the next file would continue the last line


def _separated_documents(part, separator):
    for text in _between(part, separator):
        if text:
            yield text if text.endswith(b"\n") else text + b"\n"


def _json_documents(part, text_key):
    for number, line in enumerate(_between(part, b"\n"), start=1):
        if line.strip():
            text = _parse(line, text_key, part.path, part.start, number)
            if text:
                yield text if text.endswith(b"\n") else text + b"\n"


def _between(part, separator):
    """Yields the texts between separators."""
    rest = bytearray()
    for chunk in read_text(part.path, part.start, part.stop):
        searched = max(0, len(rest) - len(separator) + 1)
        rest += chunk
        if rest.find(separator, searched) >= 0:
            *texts, last = bytes(rest).split(separator)
            yield from texts
            rest = bytearray(last)
        elif len(rest) > MAX_DOCUMENT_BYTES:
            raise ValueError(
                f"{part.path} must have a document separator within every "
                f"{MAX_DOCUMENT_BYTES:,} bytes. Received: {separator!r}, which "
                "does not occur in so many bytes"
            )
    yield bytes(rest)


def _parse(line, text_key, path, start, number):
    try:
        text = json.loads(line)[text_key]
        return text.encode("utf-8")
    except _PARSE_ERRORS as error:
        place = f"line {number}" + (f" after byte {start}" if start else "")
        raise ValueError(
            f"{path}, {place}: every line must be a JSON object whose "
            f"`text_key`, here {text_key!r}, is a string. "
            f"Received: {line[:80]!r} ({error!r})"
        ) from error
