"""Writes and reads files of ids: little-endian integers without a header."""

import collections
import functools
import itertools
import json
import os

import numpy as np

from txl_keras import gfile
from txl_keras.checks import check_token_ids
from txl_keras.data.corpora.files import file_digest
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.data.corpora.files import write_text
from txl_keras.data.parallel import map_blocks
from txl_keras.data.tokenizers.saving import load_tokenizer
from txl_keras.data.tokenizers.saving import save_tokenizer
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import smallest_dtype

DOCUMENTS_FILE = "documents.bin"
# Bytes per read from a bucket, and pages in the cache: 64 MiB in all.
PAGE_BYTES = 1 << 16
NUM_PAGES = 1024


def shard_paths(folder, number):
    """Returns the paths of the files that hold the ids of a split, in order."""
    # Names are made here and never read from a file, so that a stranger's
    # folder cannot name files elsewhere.
    if number == 1:
        return [os.path.join(folder, "tokens.bin")]
    names = (f"tokens-{i:05}-of-{number:05}.bin" for i in range(number))
    return [os.path.join(folder, name) for name in names]


def open_tokens(paths, lengths, dtype):
    """Opens files of ids as a read-only `np.memmap`, or as `TokenFiles`."""
    tokens = TokenFiles(paths, lengths, dtype)
    if is_remote(paths[0]):
        return tokens
    files = [tokens.file(number) for number in range(len(paths))]
    return files[0] if len(files) == 1 else tokens


class TokenFiles:
    """Reads ids in several files, or in a bucket, as if they were one array."""

    # Files are opened when they are first read. From a bucket, ranges are read
    # and recent pages are cached, so that rows that read sequentially send one
    # request for many steps.

    def __init__(self, paths, lengths, dtype):
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._paths = paths
        self._starts = np.cumsum([0, *lengths], dtype=np.int64)
        self.file = functools.cache(self._open)
        self._page = functools.lru_cache(NUM_PAGES)(self._read_pages)

    def __len__(self):
        return int(self._starts[-1])

    def __getitem__(self, index):
        """Returns the ids of a slice with step 1, as an array."""
        start, stop, _ = index.indices(len(self))
        if stop <= start:
            return np.zeros(0, self.dtype)
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        last = int(np.searchsorted(self._starts, stop, "left"))
        bounds = itertools.pairwise(self._starts[first : last + 1].tolist())
        return _joined(
            self._part(number, max(0, start - begin), min(stop, end) - begin)
            for number, (begin, end) in enumerate(bounds, start=first)
            if begin < end
        )

    def _part(self, number, start, stop):
        """Returns ids `[start, stop)` of one file."""
        ids = self.file(number)
        if ids is not None:
            return ids[start:stop]
        size = PAGE_BYTES // self.dtype.itemsize  # ids per page
        first, last = start // size, -(-stop // size)
        if last - first > 2:  # too much to keep
            pages = [self._read_pages(number, first, last)]
        else:
            pages = [self._page(number, i, i + 1) for i in range(first, last)]
        return _joined(pages)[start - first * size : stop - first * size]

    def _read_pages(self, number, first, last):
        with gfile.GFile(self._paths[number], "rb") as file:
            file.seek(first * PAGE_BYTES)
            data = file.read((last - first) * PAGE_BYTES)
        return np.frombuffer(data, self.dtype)

    def _open(self, number):
        """Returns a file as `np.memmap`, in a bucket None; checks its size."""
        path = self._paths[number]
        if not gfile.exists(path):
            raise FileNotFoundError(f"There is no file of ids {path}.")
        size = gfile.stat(path).length
        expected = int(np.diff(self._starts)[number]) * self.dtype.itemsize
        if size != expected:
            raise ValueError(
                f"{path} was changed after it was prepared: delete its folder, "
                "and it will be prepared again. "
                f"Expected: {expected} bytes. Received: {size}"
            )
        if is_remote(path):
            return None
        if not size:
            return np.zeros(0, self.dtype)  # an empty file cannot be mapped
        return np.memmap(path, self.dtype, mode="r")


def _joined(arrays):
    arrays = list(arrays)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


# === Writing ===


def write_tokens(corpus, split, tokenizer, folder, section_map=None):
    """Encodes a split to files; returns their `PreparedSplit.metadata`."""
    # Writes one file, whose blocks are encoded on all cores; with a
    # `section_map` one file per section of the text.
    source = f"The {split} split of {corpus.name}"
    if section_map is None:
        paths = shard_paths(folder, 1)
        encode = functools.partial(encode_block, tokenizer, source)
        blocks = map_blocks(
            encode, corpus, split, "Encoding", tokenizer.releases_gil
        )
        shards = [write_shard(blocks, token_dtype(tokenizer), paths[0])]
    else:
        sections = corpus.text(split).sections()
        paths = shard_paths(folder, len(sections))
        saved = os.path.join(folder, "tokenizer.json")
        save_tokenizer(tokenizer, saved)
        encode = functools.partial(_encode_section, saved, source)
        shards = section_map(encode, [*zip(sections, paths, strict=True)])
    totals = collections.Counter()
    lengths, starts = [], []
    for shard in shards:
        documents = np.array(shard.pop("documents"), np.int64)
        starts.append(totals["num_tokens"] + documents)
        lengths.append(shard["num_tokens"])
        totals.update(shard)
    starts = np.unique(np.concatenate(starts))
    # Documents without tokens are dropped.
    starts = starts[starts < totals["num_tokens"]]
    documents_path = os.path.join(folder, DOCUMENTS_FILE)
    with gfile.GFile(documents_path, "wb") as file:
        file.write(starts.astype("<i8").tobytes())
    return {
        **totals,
        "num_documents": len(starts),
        "vocabulary_size": tokenizer.vocabulary_size,
        "lengths": lengths,
        "sha256": file_digest(*paths),
        "documents_sha256": file_digest(documents_path),
    }


def token_dtype(tokenizer):
    """Returns the dtype in which a tokenizer's ids are stored."""
    return smallest_dtype(tokenizer.vocabulary_size).newbyteorder("<")


def write_shard(encoded_blocks, dtype, path):
    """Writes the ids of encoded blocks to a file; describes its content."""
    totals = dict.fromkeys(("num_tokens", "num_bytes", "num_unknown"), 0)
    documents = [np.zeros(0, np.int64)]
    with gfile.GFile(path, "wb") as file:
        for block in encoded_blocks:
            ids = block["ids"].astype(dtype, copy=False).tobytes()
            try:
                file.write(ids)
            except gfile.errors() as error:
                raise OSError(
                    f"Token ids could not be written to {path}: {error}. Is "
                    "the disk full?"
                ) from error
            documents.append(totals["num_tokens"] + block["documents"])
            for name in totals:
                totals[name] += block[name]
    return {**totals, "documents": np.concatenate(documents)}


_load_tokenizer = functools.lru_cache(1)(load_tokenizer)


def _encode_section(tokenizer_path, source, section_and_path):
    """Writes the ids of a section; returns the result of `write_shard`."""
    # A run that was killed continues with the sections without a result.
    section, path = section_and_path
    if not gfile.exists(_result_path(path)):
        tokenizer = _load_tokenizer(tokenizer_path)
        encode = functools.partial(encode_block, tokenizer, source)
        blocks = map(encode, section.blocks())
        with renamed_when_complete(path) as unfinished:
            shard = write_shard(blocks, token_dtype(tokenizer), unfinished)
        shard["documents"] = shard["documents"].tolist()
        write_text(json.dumps(shard), _result_path(path))
    with gfile.GFile(_result_path(path), "rb") as file:
        return json.loads(file.read())


def _result_path(path):
    return f"{path}.json"


def remove_results(folder, num_files):
    """Removes the results of sections, which the metadata replace."""
    paths = map(_result_path, shard_paths(folder, num_files))
    for path in filter(gfile.exists, paths):
        gfile.remove(path)


def encode_block(tokenizer, source, block):
    """Returns the ids of a `Block`, where its documents begin, and sizes."""
    try:
        ids, lengths = tokenizer.encode_texts(
            block.pieces, begins_line=not block.amid_line
        )
    except UnknownSymbolError as error:
        raise ValueError(
            f"{source} has {error.symbol!r}, which is not in the vocabulary. "
            "Use a vocabulary built from this text, or one with an entry for "
            "unknown words; for ids use a larger --vocabulary_size. A trained "
            "model keeps its vocabulary: replace the symbol in the text."
        ) from error
    if len(ids):  # they would be stored modulo 256 or 65,536
        remedy = (
            f"{source} was encoded by {type(tokenizer).__name__}, whose "
            "`vocabulary_size` must be larger than every id."
        )
        check_token_ids("encode", ids, tokenizer.vocabulary_size, remedy=remedy)
    num_bytes, num_unknown = block.num_bytes, 0
    if getattr(tokenizer, "drop_newlines", False):
        # Scores are of the other bytes.
        num_bytes -= sum(piece.count(b"\n") for piece in block.pieces)
    if tokenizer.unknown_id is not None:
        num_unknown = int(np.count_nonzero(ids == tokenizer.unknown_id))
    return {
        "ids": ids,
        "documents": (np.cumsum(lengths) - lengths)[int(block.continues) :],
        "num_tokens": len(ids),
        "num_bytes": num_bytes,
        "num_unknown": num_unknown,
    }
