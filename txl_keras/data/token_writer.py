"""Encodes a split and writes its ids and document positions."""

import dataclasses
import hashlib
import os

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora.files import file_digest
from txl_keras.data.parallel import map_blocks
from txl_keras.data.token_files import shard_paths
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import smallest_dtype

DOCUMENTS_FILE = "documents.bin"


def write_tokens(corpus, split, tokenizer, folder, beam=None):
    """Encodes a split to files; returns their `PreparedSplit.metadata`."""
    # Each section of the text becomes one file. They are encoded on all cores,
    # block by block, or by the workers of Beam.
    write_shards = _write_shards if beam is None else beam.write_shards
    paths = shard_paths(folder, len(corpus.sections(split)))
    num_tokens = num_documents = 0
    starts = np.zeros(0, np.int64)
    totals = dict.fromkeys(("num_bytes", "num_unknown"), 0)
    lengths, digests = [], []
    documents_path = os.path.join(folder, DOCUMENTS_FILE)
    with tf.io.gfile.GFile(documents_path, "wb") as documents:
        try:
            for shard in write_shards(corpus, split, tokenizer, paths):
                starts = np.append(starts, num_tokens + shard.documents)
                num_tokens += shard.num_tokens
                # Documents without tokens are dropped.
                begun = np.unique(starts[starts < num_tokens])
                documents.write(begun.astype("<i8").tobytes())
                starts = starts[starts >= num_tokens]
                num_documents += len(begun)
                for name in totals:
                    totals[name] += getattr(shard, name)
                lengths.append(shard.num_tokens)
                digests.append(shard.sha256)
        except UnknownSymbolError as error:
            raise corpus.unknown_symbol_error(
                split, error.symbol, num_tokens + error.position
            ) from error
    return {
        "num_tokens": num_tokens,
        "num_documents": num_documents,
        **totals,
        "vocabulary_size": tokenizer.vocabulary_size,
        "dtype": token_dtype(tokenizer).name,
        "lengths": lengths,
        "sha256": joint_digest(digests),
        "documents_sha256": file_digest(documents_path, "sha256"),
    }


def token_dtype(tokenizer):
    """Returns the dtype of the ids of a tokenizer in files."""
    return smallest_dtype(tokenizer.vocabulary_size).newbyteorder("<")


def joint_digest(digests):
    """Returns the hash of the hashes of several files."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@dataclasses.dataclass
class Shard:
    """Describes a file of ids. `documents` begin at these ids, `(D,)`."""

    num_tokens: int
    num_bytes: int
    num_unknown: int
    sha256: str
    documents: np.ndarray


def write_shard(encoded_blocks, dtype, path):
    """Writes the ids of encoded blocks to a file and returns its `Shard`."""
    digest = hashlib.sha256()
    num_tokens = num_bytes = num_unknown = 0
    starts = [np.zeros(0, np.int64)]
    with tf.io.gfile.GFile(path, "wb") as file:
        try:
            for block in encoded_blocks:
                ids = block.ids.astype(dtype, copy=False).tobytes()
                digest.update(ids)
                file.write(ids)
                starts.append(num_tokens + block.document_starts)
                num_tokens += len(block.ids)
                num_bytes += block.num_bytes
                num_unknown += block.num_unknown
        except UnknownSymbolError as error:
            raise error.after(num_tokens) from error
    return Shard(
        num_tokens,
        num_bytes,
        num_unknown,
        digest.hexdigest(),
        np.concatenate(starts),
    )


def _write_shards(corpus, split, tokenizer, paths):
    """Encodes the blocks of all sections on all cores; yields `Shard`s."""
    dtype = token_dtype(tokenizer)
    encoded = map_blocks(
        Encoder(tokenizer), corpus, split, "Encoding", tokenizer.releases_gil
    )
    following = next(encoded, None)

    def blocks_in(section):
        nonlocal following
        while following is not None and following.section == section:
            yield following
            following = next(encoded, None)

    for section, path in enumerate(paths):
        yield write_shard(blocks_in(section), dtype, path)


@dataclasses.dataclass
class _EncodedBlock:
    ids: np.ndarray
    document_starts: np.ndarray
    num_bytes: int
    num_unknown: int
    section: int


class Encoder:
    """Encodes a `Block` and finds the positions where its documents begin."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __call__(self, block):
        ids, ends = self._encode_at_once(block) or self._encode_each(block)
        starts = ends[int(block.continues) : -1]
        unknown_id = self._tokenizer.unknown_id
        num_unknown = 0
        if unknown_id is not None:
            num_unknown = int(np.count_nonzero(ids == unknown_id))
        return _EncodedBlock(
            ids, starts, block.num_bytes, num_unknown, block.section
        )

    def _encode_at_once(self, block):
        """Encodes all pieces in one call, because one per piece is slow."""
        # Returns the ids, and 0 followed by the end of each piece; or None if
        # the newlines among the ids do not determine these ends.
        newline_id = self._tokenizer.newline_id
        *pieces, _ = block.pieces
        if newline_id is None or not all(p.endswith(b"\n") for p in pieces):
            return None
        text = block.text
        ids = self._tokenizer.encode(text, not block.amid_line)
        newlines = np.flatnonzero(ids == newline_id)
        if len(newlines) != text.count(b"\n"):
            return None  # the text itself contains, say, `<eos>`
        last = np.cumsum([piece.count(b"\n") for piece in pieces], dtype=int)
        return ids, np.array([0, *newlines[last - 1] + 1, len(ids)])

    def _encode_each(self, block):
        """Encodes piece by piece, with the result of `_encode_at_once`."""
        ids, position = [], 0
        for i, piece in enumerate(block.pieces):
            begins_line = i > 0 or not block.amid_line
            try:
                ids.append(self._tokenizer.encode(piece, begins_line))
            except UnknownSymbolError as error:
                raise error.after(position) from None
            position += len(ids[-1])
        return np.concatenate(ids), np.cumsum([0, *map(len, ids)])
