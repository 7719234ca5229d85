"""Prepares a corpus: encodes its text once and stores the ids on disk.

Every combination of corpus, tokenizer and split has its own folder, named after
a hash of everything that the ids depend on:

FOLDER/enwik8_bytes-1f0c.../train/tokens.bin     the ids, see `token_files`
FOLDER/enwik8_bytes-1f0c.../train/documents.bin  int64, document positions
FOLDER/enwik8_bytes-1f0c.../train/metadata.json  sizes, dtype, hashes

The ids of a large text are in several files, one per section of the text. All
files can be deleted: they are made again when needed.

A split is complete once metadata.json exists, which is written last.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from txl_keras.data import token_files
from txl_keras.data.corpora import files
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.tokenizers import building
from txl_keras.data.tokenizers.id_tokenizer import IdTokenizer
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.file_lock import lock
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import check_fields
from txl_keras.json_files import read_json
from txl_keras.types import PathLike

# Must be increased when files of older versions must not be used any more.
FORMAT = 3
METADATA_FILE = "metadata.json"
# Of metadata; all others are compared with what they must be.
_FIELDS = {
    "num_documents": "an integer",
    "num_bytes": "an integer",
    "num_unknown": "an integer",
    "vocabulary_size": "an integer",
    "lengths": "a list of integers",
}
# Larger files are hashed only if they are newer than their metadata, and files
# in a bucket never, because hashing reads all of a file.
HASHED_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class PreparedSplit:
    """Holds the token ids of a split, which are stored on disk.

    Args:
        tokens: Ids of shape `(n,)`: a read-only `np.memmap`, or for a bucket or
            several files an object whose slices are arrays.
        documents: int64, shape `(D,)`, the position of the first token of each
            document: an array, or for a bucket an object whose slices are
            arrays.
        metadata: Dict of `num_tokens`, `num_documents`, `num_bytes`,
            `num_unknown`, `vocabulary_size`, `dtype`, `lengths` (the number of
            ids in each file), `sha256` and `documents_sha256` (hashes of ids
            and positions), `split`, and `tokenizer` (the hash of the
            tokenizer).
        folder: String, the folder of the files.
    """

    tokens: object
    documents: object
    metadata: dict
    folder: str

    def head(
        self, num_tokens: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first tokens of the split and the documents within them.

        Args:
            num_tokens: Optional integer. Default: all.

        Returns:
            The pair of `tokens` and `documents`.
        """
        tokens, documents = self.tokens, self.documents[:]
        if num_tokens is not None:  # a slice of several files is a copy
            tokens = tokens[:num_tokens]
        begun = np.searchsorted(documents, len(tokens))
        return tokens, documents[:begun]

    @property
    def paths(self) -> list[str]:
        """Returns the paths of the files of ids."""
        return token_files.shard_paths(
            self.folder, len(self.metadata["lengths"])
        )

    def fingerprint(self) -> dict:
        """Returns a dict that identifies the ids in a run's configuration."""
        names = ("num_tokens", "sha256", "documents_sha256")
        return {name: self.metadata[name] for name in names}


def prepare_tokenizer(
    name: str, corpus: Corpus, folder: PathLike, beam: Any = None, **options
) -> Tokenizer:
    """Builds the tokenizer of a corpus, or loads it if it was built before.

    Args:
        name: String, as for `build_tokenizer`.
        corpus: A `Corpus`.
        folder: String. The folder where prepared text is stored.
        beam: Optional `txl_keras.data.beam.Beam`, whose workers read the text.
        **options: As for `build_tokenizer`.

    Returns:
        A tokenizer.
    """
    if name == "bytes":  # has no vocabulary to build or store
        return building.build_tokenizer(name, corpus, **options)
    key = [FORMAT, corpus.fingerprint(), name, options]
    parent = _folder(folder, f"{corpus.name}_{name}_tokenizer", key)
    path = os.path.join(parent, "tokenizer.json")
    with _locked(parent, beam) as beam:
        if tf.io.gfile.exists(path):
            return building.load_tokenizer(path)
        section_map = beam and functools.partial(beam.map, "read")
        tokenizer = building.build_tokenizer(
            name, corpus, section_map, **options
        )
        tf.io.gfile.makedirs(parent)
        building.save_tokenizer(tokenizer, path)
        return tokenizer


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: PathLike,
    splits: Sequence[str] = SPLITS,
    beam: Any = None,
) -> dict:
    """Encodes splits of a corpus and stores the ids, or opens existing ones.

    Args:
        corpus: A `Corpus`.
        tokenizer: A tokenizer.
        folder: String, local or in a bucket. The folder where prepared text is
            stored.
        splits: Sequence of strings.
        beam: Optional `txl_keras.data.beam.Beam`, whose workers encode the text
            to the same files as without.

    Returns:
        Dict of split to `PreparedSplit`.

    Raises:
        OSError: If the disk is full.
        ValueError: If the folder cannot be written; if a split has no tokens or
            a symbol that is not in the vocabulary, or if its files were changed
            after they were prepared; if the corpus has token ids and the
            tokenizer takes text, or the other way round.
    """
    building.check_kind(corpus, isinstance(tokenizer, IdTokenizer))
    key = [FORMAT, corpus.fingerprint(), tokenizer_hash(tokenizer)]
    parent = _folder(folder, f"{corpus.name}_{tokenizer.unit}s", key)
    paths = {split: os.path.join(parent, split) for split in splits}
    with _locked(parent, beam) as beam:
        for split, path in paths.items():
            if not tf.io.gfile.exists(os.path.join(path, METADATA_FILE)):
                _write_split(corpus, split, tokenizer, path, beam)
    return {split: open_split(path, tokenizer) for split, path in paths.items()}


def open_split(folder, tokenizer):
    """Opens a `PreparedSplit` that `prepare` wrote, and checks its files."""
    metadata_path = os.path.join(folder, METADATA_FILE)
    metadata = read_json(metadata_path, max_bytes=MAX_VOCABULARY_BYTES)
    check_fields(metadata, _FIELDS, metadata_path)
    dtype = token_files.token_dtype(tokenizer)
    lengths = metadata["lengths"]
    expected = {
        "num_tokens": sum(lengths),
        "tokenizer": tokenizer_hash(tokenizer),
        "dtype": dtype.name,
        "split": os.path.basename(folder),
    }
    token_files.check_same(folder, metadata, expected)
    paths = token_files.shard_paths(folder, len(lengths))
    documents_path = os.path.join(folder, token_files.DOCUMENTS_FILE)
    split = PreparedSplit(
        token_files.open_tokens(paths, lengths, dtype),
        token_files.open_tokens(
            [documents_path], [metadata["num_documents"]], np.int64
        ),
        metadata,
        folder,
    )
    if not files.is_remote(folder):
        newest = max(map(files.modification_time, [documents_path, *paths]))
        is_newer = newest > files.modification_time(metadata_path)
        if is_newer or split.tokens.nbytes <= HASHED_BYTES:
            check_hash(split)
    return split


def check_hash(split):
    """Raises ValueError if the ids of a split were changed since `prepare`."""
    documents = os.path.join(split.folder, token_files.DOCUMENTS_FILE)
    digests = map(files.file_digest, split.paths)
    found = {
        "sha256": token_files.joint_digest([*digests]),
        "documents_sha256": files.file_digest(documents),
    }
    token_files.check_same(split.folder, split.metadata, found)


def token_folder(data_dir=None):
    """Returns the folder of prepared text, by default below that of TFDS."""
    return os.path.join(files.data_folder(data_dir), "txl_keras_tokens")


def tokenizer_hash(tokenizer):
    """Returns a SHA-256 that identifies a tokenizer and its options."""
    return _hash([type(tokenizer).__name__, tokenizer.get_config()])


def _write_split(corpus, split, tokenizer, path, beam):
    # What a killed run has written is continued by Beam only. In a bucket
    # another host may be writing the same.
    if beam is None and not files.is_remote(path):
        files.remove_folder(path)
    tf.io.gfile.makedirs(path)
    try:
        metadata = token_files.write_tokens(
            corpus, split, tokenizer, path, beam
        )
        metadata |= {"split": split, "tokenizer": tokenizer_hash(tokenizer)}
        if not metadata["num_tokens"]:
            raise ValueError(
                f"The {split} split of {corpus.name} must have at least one "
                f"token. Received: {metadata['num_bytes']} bytes, no tokens"
            )
        text = json.dumps(metadata, indent=1) + "\n"
        files.write_text(text, os.path.join(path, METADATA_FILE))
    except BaseException as error:
        # What Beam has finished is kept, unless the text is refused.
        if beam is None or isinstance(error, ValueError):
            files.remove_folder(path)
        if isinstance(error, tf.errors.ResourceExhaustedError):
            raise OSError(
                f"The ids of {corpus.name} could not be written to {path}. "
                "Free some disk space or choose another --data_dir, and run "
                f"again. {error.message}"
            ) from error
        raise


@contextlib.contextmanager
def _locked(parent, beam):
    """Locks a folder; yields `beam` with a folder for its results in it."""
    work = f"{parent}/beam"
    is_remote = files.is_remote(parent)
    with contextlib.nullcontext() if is_remote else _lock(parent):
        if beam is None:
            files.remove_folder(work)
        else:
            tf.io.gfile.makedirs(work)
            beam = dataclasses.replace(beam, folder=work)
        try:
            yield beam
        except ValueError:  # of the text: other errors let the next run go on
            files.remove_folder(work)
            raise
        files.remove_folder(work)


def _lock(path):
    """Opens a file that one local process at a time can lock; returns it."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        files.remove_link(path + ".lock")
        file = open(path + ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise files.data_dir_error(os.path.dirname(path), error) from error
    try:
        lock(file, wait=False, shared_with_children=True)
    except BlockingIOError:
        print(f"Waiting for another process that prepares {path}.")
        lock(file, shared_with_children=True)
    return file


def _folder(folder, name, key):
    name = os.path.basename(name.rstrip("/"))
    slug = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[-40:]
    return os.path.join(folder, f"{slug}-{_hash(key)[:16]}")


def _hash(content):
    return hashlib.sha256(json.dumps(content).encode("utf-8")).hexdigest()
