"""Writes the ids of a split, and where its documents begin."""

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
    """Encodes a split, block by block on all cores, and writes what comes out.

    Args:
        corpus: A `Corpus`.
        split: String.
        tokenizer: A tokenizer.
        folder: String, local or of a bucket, for tokens.bin and documents.bin.

    Returns:
        Dict that describes what was written: see `PreparedSplit`.

    Raises:
        ValueError: If the tokenizer does not know a symbol of the text.
        tf.errors.OpError: If the files cannot be written.
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
                # A document without tokens is none.
                begun = np.unique(starts[starts < num_tokens])
                begun_bytes = begun.astype("<i8").tobytes()
                documents_digest.update(begun_bytes)
                starts_file.write(begun_bytes)
                starts = starts[starts >= num_tokens]
                num_documents += len(begun)
                num_bytes += block.num_bytes
                num_unknown += block.num_unknown
        except UnknownSymbolError as error:
            raise ValueError(
                f"The {split} split of {corpus.name} has {error.symbol!r}, "
                f"about {num_tokens + error.position:,} tokens after its "
                "start, which the vocabulary lacks. Give a vocabulary of this "
                "text, or one with a word for unknown ones."
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
    """Encodes a `Block`, and finds where its documents begin."""

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
        """Ids and ends of lines: a call for each of many is slow.

        Returns:
            The pair of ids and of 0 and where each piece ends; or None where
            the newlines among the ids do not tell that.
        """
        newline_id = self._tokenizer.newline_id
        *pieces, _ = block.pieces
        if newline_id is None or not all(p.endswith(b"\n") for p in pieces):
            return None
        text = block.text
        ids = self._tokenizer.encode(text, not block.amid_line)
        newlines = np.flatnonzero(ids == newline_id)
        if len(newlines) != text.count(b"\n"):
            return None  # a mark that a newline has may be in the text itself
        last = np.cumsum([piece.count(b"\n") for piece in pieces], dtype=int)
        return ids, np.array([0, *newlines[last - 1] + 1, len(ids)])

    def _encode_each(self, block):
        """As `_encode_at_once`, one piece after the other."""
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
