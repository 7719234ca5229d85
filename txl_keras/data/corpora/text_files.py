"""The user's own text or token ids: files on disk or in a bucket."""

import collections
import dataclasses
import itertools
import os
import re
import statistics
import zlib
from typing import NamedTuple

import numpy as np

from txl_keras import gfile
from txl_keras.data.corpora import corpus
from txl_keras.data.corpora import files
from txl_keras.data.corpora import id_files
from txl_keras.data.corpora import splitting
from txl_keras.data.corpora.splitting import listed
from txl_keras.json_files import parse_json


def load(path, document_separator=None, text_key="text", whole=False):
    """Finds and splits the files of a text, reading as little as possible."""
    # docs/data.md has the rules. Files are in the order of their paths.
    separator = document_separator and document_separator.encode() or None
    parts, description = _split(path, separator, whole)
    paths = {part.path for found in parts.values() for part in found}
    ids = {path for path in paths if id_files.is_id_file(path)}
    if ids and (separator or paths != ids):
        raise ValueError(
            f"{path} must have only files of token ids (.npy, .npz) and no "
            "`document_separator`, or only files of text. Received: "
            f"{listed(paths)}, document_separator={document_separator!r}"
        )
    kind, encoding = (IdFiles, "ids") if ids else (TextFiles, "utf-8")
    splits = {
        split: kind(tuple(found), separator, text_key, len(found) > 1)
        for split, found in parts.items()
    }
    identity = {split: text.identity() for split, text in splits.items()}
    return corpus.Corpus(path, splits, encoding, identity, description)


class Part(NamedTuple):
    """Holds bytes or ids `[start, stop)` of a file; stop None: to its end."""

    path: str
    version: tuple  # the size of the file and when it was written
    start: int = 0
    stop: int = None

    @property
    def num_bytes(self):
        """Returns the bytes to read; for a whole `.gz` the compressed size."""
        stop = self.version[0] if self.stop is None else self.stop
        return stop - self.start

    def check_unchanged(self):
        """Raises ValueError if the file was changed since it was found."""
        if files.version_of(self.path) != self.version:
            raise ValueError(
                f"{self.path} was changed while it was read, or before. Run "
                "the same command again when no other program writes to it."
            )


@dataclasses.dataclass(frozen=True)
class TextFiles(corpus.Text):
    """Reads the documents of text files again in each iteration."""

    parts: tuple
    separator: bytes
    text_key: str
    ends_lines: bool

    @property
    def num_bytes(self):
        return sum(part.num_bytes for part in self.parts)

    @property
    def num_text_bytes(self):
        # The ends of a part of a file are places in the unpacked text.
        whole = (part for part in self.parts if part.stop is None)
        packed = [p for p in whole if p.path.lower().endswith(".gz")]
        if not packed:
            return self.num_bytes
        growth = statistics.mean(map(_growth, packed[:10]))
        more = (growth - 1) * sum(part.num_bytes for part in packed)
        return self.num_bytes + round(max(0, more))

    def identity(self):
        """Returns the files with sizes and times, and the options, for JSON."""
        parts = [[p.path, p.start, p.stop, *p.version] for p in self.parts]
        options = [self.separator and self.separator.decode(), self.text_key]
        return [parts, options]

    def sections(self):
        """Returns `TextFiles` of whole parts, of about `SECTION_BYTES`."""
        groups, filled = [], corpus.SECTION_BYTES
        for part in self.parts:
            if filled >= corpus.SECTION_BYTES:
                groups.append([])
                filled = 0
            groups[-1].append(part)
            filled += part.num_bytes
        return [dataclasses.replace(self, parts=tuple(g)) for g in groups]

    def __iter__(self):
        for part in self._read_parts():
            delimiter = _delimiter(part.path, self.separator)
            if delimiter is None:
                yield self._whole(part)
            else:
                yield from self._documents(part, delimiter)

    def _read_parts(self):
        """Yields the parts; checks each file's version before and after."""
        for part in self.parts:
            part.check_unchanged()
            yield part
            part.check_unchanged()

    def _whole(self, part):
        chunk = b"\n"
        for chunk in files.read_text(part.path, part.start, part.stop):
            yield chunk
        # Otherwise the next file would continue the last line.
        if self.ends_lines and not chunk.endswith(b"\n"):
            yield b"\n"

    def _documents(self, part, delimiter):
        is_json = _is_json_lines(part.path)
        texts = files.read_between(part.path, delimiter, part.start, part.stop)
        for number, text in enumerate(texts, start=1):
            if is_json:
                text = text.strip() and self._json_text(text, part, number)
            if text:
                yield text if text.endswith(b"\n") else text + b"\n"

    def _json_text(self, line, part, number):
        try:
            text = parse_json(line, f"line {number}")[self.text_key]
            return str.encode(text, "utf-8")
        except (ValueError, LookupError, TypeError) as error:
            start = f" after byte {part.start}" if part.start else ""
            raise ValueError(
                f"{part.path}, line {number}{start}: every line must be a JSON "
                f"object whose `text_key`, here {self.text_key!r}, is a "
                f"string. Received: {line[:80]!r} ({error!r})"
            ) from error


class IdFiles(TextFiles):
    """Reads token ids from files; the pieces of a block are arrays."""

    @property
    def num_bytes(self):  # unknown for `.npz` files
        return None if self.parts else 0

    def blocks(self):
        for part in self._read_parts():
            tokens, documents = id_files.open_ids(part.path, part.version)
            stop = len(tokens) if part.stop is None else part.stop
            size = max(1, corpus.BLOCK_BYTES // tokens.itemsize)
            for start in range(part.start, stop, size):
                ids = np.array(tokens[start : min(start + size, stop)])
                id_files.check_ids(part.path, ids, start)
                bounds = np.searchsorted(documents, (start, start + len(ids)))
                inside = documents[slice(*bounds)] - start
                begins = start == part.start or 0 in inside[:1]
                pieces = np.split(ids, inside[inside > 0])
                yield corpus.Block(pieces, not begins)


def _split(path, separator, whole):
    """Returns `Part`s by split, and describes which files are held out."""
    found = _find_files(path)
    root = path
    if not gfile.isdir(path):
        root = os.path.dirname(re.split(r"[*?\[]", path)[0])
    # By relative paths: the result must not depend on the folder's location.
    sizes = {os.path.relpath(file, root): found[file] for file in found}

    def parts(names):
        paths = [os.path.join(root, name) for name in sorted(names)]
        return [Part(path, files.version_of(path)) for path in paths]

    named = None
    if len(sizes) > 1 and not whole:
        # An empty file counts where its name is the name of a split.
        named = splitting.split_by_name(root, sizes)
    if named:
        chosen = {
            split: _drop_copies(root, {name: sizes[name] for name in names})
            for split, names in named.items()
        }
    else:
        sizes = _drop_copies(root, sizes)
        if whole:
            return {corpus.WHOLE: parts(sizes)}, ""
        chosen = splitting.split_groups(sizes)
        if not splitting.fits(
            {split: sum(map(sizes.get, x)) for split, x in chosen.items()}
        ):
            cut = _cut(parts(sizes), separator)
            # Files of one line or one document cannot be cut.
            if len(sizes) < len(corpus.SPLITS) or splitting.fits(
                {x: sum(p.num_bytes for p in cut[x]) for x in cut}
            ):
                each = "each of " * (len(sizes) > 1)
                return (
                    cut,
                    f"valid and test are the last tenth of {each}"
                    f"{listed(sizes)}",
                )
    left_out = sizes.keys() - set().union(*chosen.values())
    return (
        {split: parts(names) for split, names in chosen.items()},
        f"valid is {listed(chosen['valid'])}; test is "
        f"{listed(chosen['test'])} (by "
        f"{'name' if named else 'a hash of the names'})"
        + (f"; left out: {listed(left_out)}" if left_out else ""),
    )


def _cut(parts, separator):
    """Cuts each file into splits; returns `Part`s by split."""
    splits = {split: [] for split in corpus.SPLITS}
    for part in parts:
        if id_files.is_id_file(part.path):
            tokens, documents = id_files.open_ids(part.path, part.version)
            ends = splitting.held_out_places(len(tokens))
            if len(documents) > 1:
                bounds = np.append(documents, len(tokens))
                ends = bounds[np.searchsorted(bounds, ends)].tolist()
            ends = [*ends, len(tokens)]
        else:
            delimiter = _delimiter(part.path, separator)
            ends = splitting.split_file(part.path, delimiter)
        bounds = itertools.pairwise([0, *ends])
        for split, (start, stop) in zip(splits, bounds, strict=True):
            if start < stop:
                splits[split].append(part._replace(start=start, stop=stop))
    return splits


def _drop_copies(root, sizes):
    """Returns the sizes without empty files and copies of other files."""
    # Otherwise a text could be in both train and test.
    kept, seen = {}, set()
    counts = collections.Counter(sizes.values())
    for name, size in sizes.items():
        digest = name
        if counts[size] > 1 and size:
            digest = files.file_digest(os.path.join(root, name))
        if size and digest not in seen:
            kept[name] = size
        seen.add(digest)
    return kept


def _find_files(path):
    """Returns a dict of the text's paths to their sizes, in order."""
    if gfile.isdir(path):
        paths = _files_below(path)
    elif gfile.exists(path):
        paths = [path]
    else:
        if "**" in path:
            raise ValueError(
                "`corpus` must not have ** in a pattern: pass the folder, "
                f"which is read with its subfolders. Received: {path}"
            )
        paths = [p for p in gfile.glob(path) if not gfile.isdir(p)]
        if not paths:
            raise FileNotFoundError("no such path")
    sizes = {p: gfile.stat(p).length for p in sorted(paths)}
    if not any(sizes.values()):
        raise ValueError(
            f"{path} must be, or contain, at least one file with text. "
            "Received: no files, or only empty and hidden ones, pipes and "
            "devices"
        )
    return sizes


def _files_below(folder, above=()):
    """Yields the files in a folder and its subfolders, except hidden ones."""
    place = folder if files.is_remote(folder) else os.path.realpath(folder)
    if place in above:
        raise ValueError(
            f"{folder} must not be a link to a folder that contains it, which "
            f"is an endless loop: remove it. Received: a link to {place}"
        )
    for name in gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        if name.startswith("."):
            continue
        if gfile.isdir(path):
            yield from _files_below(path, (*above, place))
        else:
            yield path


def _growth(part):
    """Returns how many bytes one byte at the start of a `.gz` file becomes."""
    with gfile.GFile(part.path, "rb") as file:
        packed = file.read(1 << 16)
    unpacking = zlib.decompressobj(31)
    try:
        text = unpacking.decompress(packed)
    except zlib.error:
        return 1  # reading the text will name the damage
    return len(text) / max(1, len(packed) - len(unpacking.unused_data))


def _is_json_lines(path):
    name = path.lower().removesuffix(".gz")
    return name.endswith((".jsonl", ".ndjson"))


def _delimiter(path, separator):
    """Returns the separator of a file's documents, or None."""
    return b"\n" if _is_json_lines(path) else separator
