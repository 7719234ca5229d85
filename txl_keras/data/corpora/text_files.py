"""The user's own text or token ids: files on disk or in a bucket."""

import dataclasses
import itertools
import json
import os
import re

import tensorflow as tf

from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import WHOLE
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.corpus import Section
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import modification_time
from txl_keras.data.corpora.files import read_between
from txl_keras.data.corpora.files import read_bytes
from txl_keras.data.corpora.files import read_text
from txl_keras.data.corpora.files import rough_size
from txl_keras.data.corpora.id_files import ID_SUFFIXES
from txl_keras.data.corpora.id_files import IdCorpus
from txl_keras.data.corpora.id_files import is_id_file
from txl_keras.data.corpora.id_files import split_ids
from txl_keras.data.corpora.split_names import listed
from txl_keras.data.corpora.split_names import named_splits
from txl_keras.data.corpora.split_names import splits_in
from txl_keras.data.corpora.splitting import cuts
from txl_keras.data.corpora.splitting import drop_duplicates
from txl_keras.data.corpora.splitting import grouped
from txl_keras.data.corpora.splitting import split_file
from txl_keras.data.corpora.splitting import split_groups

_JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", ".tokens", *_JSON_LINES, *ID_SUFFIXES)
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
        parts, description = _split(path, separator, whole)
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
        description=description,
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
            delimiter = _delimiter(part.path, self.separator)
            if delimiter is None:
                ends_line = self.ends_lines and not part.continued
                yield _whole_file(part, ends_line)
            else:
                yield from self._documents(part, delimiter)

    def _documents(self, part, delimiter):
        is_json = _is_json_lines(part.path)
        texts = read_between(part.path, delimiter, part.start, part.stop)
        for number, text in enumerate(texts, start=1):
            if is_json:
                if not text.strip():
                    continue
                text = _json_text(text, self.text_key, part, number)
            if text:
                yield text if text.endswith(b"\n") else text + b"\n"

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
    """Returns a dict of split to `Part`s, and which files are held out."""
    found = _find_files(path)
    root = path
    if not tf.io.gfile.isdir(path):
        root = os.path.dirname(re.split(r"[*?\[]", path)[0])
    # By relative paths: the result must not depend on the folder's place.
    files = {os.path.relpath(file, root): file for file in found}
    sizes = {name: found[file] for name, file in files.items()}

    def distinct(names):
        return drop_duplicates(
            {name: sizes[name] for name in names},
            lambda name: read_bytes(files[name]),
        )

    if whole:
        return {WHOLE: [Part(files[name]) for name in distinct(files)]}, ""
    chosen, how = None, "by name"
    if len(files) > 1:
        chosen = named_splits(root, sizes, SUFFIXES)
    if chosen:
        chosen = {split: distinct(names) for split, names in chosen.items()}
    else:
        kept = distinct(files)
        if len(kept) < len(SPLITS):
            each = "each of " * (len(kept) > 1)
            return (
                _cut([files[name] for name in kept], separator),
                f"valid and test are the last tenth of {each}{listed(kept)}",
            )
        chosen, how = split_groups(kept), "by a hash of the names"
    left_out = files.keys() - set().union(*chosen.values())
    return (
        {
            split: [Part(files[name]) for name in sorted(names)]
            for split, names in chosen.items()
        },
        f"valid is {listed(chosen['valid'])}; test is "
        f"{listed(chosen['test'])} ({how})"
        + (f"; left out: {listed(left_out)}" if left_out else ""),
    )


def _cut(files, separator):
    """Cuts each of some files into splits; returns a dict to `Part`s."""
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
    empty = [p for p, size in sizes.items() if not size]
    sizes = {p: size for p, size in sizes.items() if size}
    of_empty, of_others = (
        set().union(*(splits_in(os.path.relpath(p, path)) for p in paths))
        for paths in (empty, sizes)
    )
    if sizes and not of_empty <= of_others:
        raise ValueError(
            f"{path} must have text for the splits that its files name: fill "
            f"or remove {listed(empty)}. Received: files that are empty, or no "
            "regular files"
        )
    if not sizes:
        raise ValueError(
            f"{path} must be, or contain, at least one file with text. "
            "Received: no files, or only empty and hidden ones"
        )
    return sizes


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
    return path.lower().removesuffix(".gz").endswith(_JSON_LINES)


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


def _json_text(line, text_key, part, number):
    try:
        return json.loads(line)[text_key].encode("utf-8")
    except _PARSE_ERRORS as error:
        start = f" after byte {part.start}" if part.start else ""
        raise ValueError(
            f"{part.path}, line {number}{start}: every line must be a JSON "
            f"object whose `text_key`, here {text_key!r}, is a string. "
            f"Received: {line[:80]!r} ({error!r})"
        ) from error
