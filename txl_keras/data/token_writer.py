"""Encodes a split and writes its ids and document positions."""

import dataclasses
import hashlib
import os

import numpy as np
import tensorflow as tf

from txl_keras.data.parallel import map_blocks
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import smallest_dtype

TOKENS_FILE = "tokens.bin"
DOCUMENTS_FILE = "documents.bin"


def write_tokens(corpus, split, tokenizer, folder):
    """Encodes a split on all cores, block by block, and writes ids to `folder`.

    Returns a dict that describes the files: see `PreparedSplit.metadata`.
    """
    dtype = smallest_dtype(tokenizer.vocabulary_size).newbyteorder("<")
    digest, documents_digest = hashlib.sha256(), hashlib.sha256()
    num_tokens = num_documents = num_bytes = num_unknown = 0
    starts = np.zeros(0, np.int64)
    encoded = map_blocks(
        _Encoder(tokenizer), corpus, split, "Encoding", tokenizer.releases_gil
    )
    with (
        tf.io.gfile.GFile(os.path.join(folder, TOKENS_FILE), "wb") as ids_file,
        tf.io.gfile.GFile(
            os.path.join(folder, DOCUMENTS_FILE), "wb"
        ) as starts_file,
    ):
        try:
            for block in encoded:
                ids = block.ids.astype(dtype, copy=False).tobytes()
                digest.update(ids)
                ids_file.write(ids)
                starts = np.append(starts, num_tokens + block.document_starts)
                num_tokens += len(block.ids)
                # Documents without tokens are dropped.
                begun = np.unique(starts[starts < num_tokens])
                begun_bytes = begun.astype("<i8").tobytes()
                documents_digest.update(begun_bytes)
                starts_file.write(begun_bytes)
                starts = starts[starts >= num_tokens]
                num_documents += len(begun)
                num_bytes += block.num_bytes
                num_unknown += block.num_unknown
        except UnknownSymbolError as error:
            raise corpus.unknown_symbol_error(
                split, error.symbol, num_tokens + error.position
            ) from error
    return {
        "num_tokens": num_tokens,
        "num_documents": num_documents,
        "num_bytes": num_bytes,
        "num_unknown": num_unknown,
        "vocabulary_size": tokenizer.vocabulary_size,
        "dtype": dtype.name,
        "sha256": digest.hexdigest(),
        "documents_sha256": documents_digest.hexdigest(),
    }


@dataclasses.dataclass
class _EncodedBlock:
    ids: np.ndarray
    document_starts: np.ndarray
    num_bytes: int
    num_unknown: int


class _Encoder:
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
        return _EncodedBlock(ids, starts, block.num_bytes, num_unknown)

    def _encode_at_once(self, block):
        """Encodes all pieces in one call, because one call per piece is slow.

        Returns the ids, and 0 followed by the end of each piece; or None if the
        newlines among the ids do not determine these ends.
        """
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
                raise UnknownSymbolError(
                    error.symbol, position + error.position
                ) from None
            position += len(ids[-1])
        return np.concatenate(ids), np.cumsum([0, *map(len, ids)])
