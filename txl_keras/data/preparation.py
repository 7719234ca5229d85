"""Prepares a corpus: encodes its text once and stores the ids on disk.

Every combination of corpus, tokenizer and split has its own folder, named after
a hash of everything that the ids depend on:

FOLDER/enwik8_bytes-1f0c.../train/tokens.bin     the ids, see `token_files`
FOLDER/enwik8_bytes-1f0c.../train/documents.bin  int64, document positions
FOLDER/enwik8_bytes-1f0c.../train/metadata.json  sizes, hashes; written last

With a `section_map`, there is one file of ids per section of the text.
"""

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from txl_keras import gfile
from txl_keras.checks import check_path
from txl_keras.data import token_files
from txl_keras.data.corpora import files
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.tokenizers import building
from txl_keras.data.tokenizers import saving
from txl_keras.data.tokenizers.id_tokenizer import IdTokenizer
from txl_keras.data.tokenizers.saving import tokenizer_hash
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.file_lock import lock
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import read_json
from txl_keras.types import PathLike

# Increase this when files of older versions must not be used any more.
FORMAT = 5
METADATA_FILE = "metadata.json"


@dataclasses.dataclass(frozen=True)
class PreparedSplit:
    """Holds the token ids of a split, which are stored on disk.

    Args:
        tokens: Ids of shape `(n,)`: a read-only `np.memmap`, or an object with
            slices that are arrays, for a bucket or several files.
        documents: int64 array of shape `(D,)`, the position of the first token
            of each document.
        metadata: Dict of `split`, `num_tokens`, `num_documents`, `num_bytes`,
            `num_unknown`, `vocabulary_size`, `lengths` (the number of ids in
            each file), and `sha256` and `documents_sha256` (hashes of ids and
            positions).
        folder: String, the folder of the files.
    """

    tokens: object
    documents: object
    metadata: dict
    folder: str

    def head(
        self, num_tokens: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first (or all) tokens, and the documents in them."""
        tokens, documents = self.tokens, self.documents
        if num_tokens is not None:  # a slice of several files is a copy
            tokens = tokens[:num_tokens]
        begun = np.searchsorted(documents, len(tokens))
        return tokens, documents[:begun]

    def fingerprint(self) -> dict:
        """Returns a dict that identifies the ids in a run's configuration."""
        names = ("num_tokens", "sha256", "documents_sha256")
        return {name: self.metadata[name] for name in names}


def prepare_tokenizer(
    name: str,
    corpus: Corpus,
    folder: PathLike,
    section_map: Callable | None = None,
    **options,
) -> Tokenizer:
    """Builds the tokenizer of a corpus, or loads it if it was built before.

    Args:
        name: String, as for `build_tokenizer`.
        corpus: A `Corpus`.
        folder: String. The folder where prepared text is stored.
        section_map: Optional function, see `prepare`.
        **options: As for `build_tokenizer`.

    Returns:
        A tokenizer.
    """
    options = {k: v for k, v in options.items() if v is not None}
    # Nothing to learn or store; the file of a vocabulary may change.
    if name == "bytes" or options.get("vocabulary") is not None:
        return building.build_tokenizer(name, corpus, **options)
    keys = [FORMAT, corpus.fingerprint(), name]

    def path_of(options):
        slug = f"{corpus.name}_{name}_tokenizer"
        parent = _folder(folder, slug, [*keys, options])
        return os.path.join(parent, "tokenizer.json")

    path = path_of(options)
    parent = os.path.dirname(path)
    # The text may be prepared already, with subwords from the usual sample.
    usual = {k: v for k, v in options.items() if k != "sample_bytes"}
    with _lock(parent):
        for found in (path, path_of(usual)):
            if gfile.exists(found):
                return saving.load_tokenizer(found)
        _announce(f"Learning the vocabulary of {corpus.name}", parent)
        tokenizer = building.build_tokenizer(
            name, corpus, section_map, **options
        )
        gfile.makedirs(parent)
        saving.save_tokenizer(tokenizer, path)
        return tokenizer


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: PathLike,
    splits: Sequence[str] = SPLITS,
    section_map: Callable | None = None,
) -> dict:
    """Encodes splits of a corpus and stores the ids, or opens existing ones.

    Args:
        corpus: A `Corpus`.
        tokenizer: A tokenizer.
        folder: String, local or in a bucket. The folder where prepared text is
            stored.
        splits: Sequence of strings.
        section_map: Optional function that is called as `map(function, items)`
            with one item per section of the text, and returns the results in
            order. Functions, items and results can be pickled; results are
            JSON values. Default: the text is read block by block on all cores
            of this machine.

    Returns:
        Dict of split to `PreparedSplit`.

    Raises:
        ValueError: If the folder cannot be written; if a split has no tokens or
            a symbol that is not in the vocabulary; if its files were truncated
            after they were prepared; if the corpus has token ids and the
            tokenizer takes text, or vice versa.
    """
    building.check_kind(corpus, isinstance(tokenizer, IdTokenizer))
    key = [FORMAT, corpus.fingerprint(), tokenizer_hash(tokenizer)]
    parent = _folder(folder, f"{corpus.name}_{tokenizer.unit}s", key)
    paths = {split: os.path.join(parent, split) for split in splits}
    with _lock(parent):
        missing = {
            split: path
            for split, path in paths.items()
            if not gfile.exists(os.path.join(path, METADATA_FILE))
        }
        if missing:
            names = ", ".join(missing)
            _announce(f"Encoding {names} of {corpus.name}", parent)
        for split, path in missing.items():
            _write_split(corpus, split, tokenizer, path, section_map)
    return {
        split: _open_split(path, tokenizer) for split, path in paths.items()
    }


def _announce(work, folder):
    """Prints what may take minutes, and where the result is kept."""
    print(f"{work}, once; kept in {folder}", file=sys.stderr, flush=True)


def _open_split(folder, tokenizer):
    """Opens a `PreparedSplit` that `prepare` wrote."""
    metadata = read_json(
        os.path.join(folder, METADATA_FILE), max_bytes=MAX_VOCABULARY_BYTES
    )
    paths = token_files.shard_paths(folder, len(metadata["lengths"]))
    documents_path = os.path.join(folder, token_files.DOCUMENTS_FILE)
    return PreparedSplit(
        token_files.open_tokens(
            paths, metadata["lengths"], token_files.token_dtype(tokenizer)
        ),
        token_files.open_tokens(
            [documents_path], [metadata["num_documents"]], np.int64
        )[:],
        metadata,
        folder,
    )


def token_folder(data_dir=None):
    """Returns the folder of prepared text, by default in the TFDS folder."""
    return os.path.join(files.data_folder(data_dir), "txl_keras_tokens")


def _write_split(corpus, split, tokenizer, path, section_map):
    # Only the sections of a killed run are kept. In a bucket, another host may
    # be writing the same split.
    if section_map is None and not files.is_remote(path):
        files.remove_folder(path)
    gfile.makedirs(path)
    try:
        metadata = token_files.write_tokens(
            corpus, split, tokenizer, path, section_map
        )
        metadata["split"] = split
        if not metadata["num_tokens"]:
            raise ValueError(
                f"The {split} split of {corpus.name} must have at least one "
                "token. Received: text without any"
            )
        text = json.dumps(metadata, indent=1) + "\n"
        files.write_text(text, os.path.join(path, METADATA_FILE))
        if section_map is not None:
            token_files.remove_results(path, len(metadata["lengths"]))
    except BaseException as error:
        # Finished sections are kept, unless the text is refused.
        if section_map is None or isinstance(error, ValueError):
            files.remove_folder(path)
        raise


def _lock(path):
    """Opens a file that one local process at a time can lock; returns it."""
    if files.is_remote(path):
        return contextlib.nullcontext()
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
    folder = check_path("folder", folder)
    return os.path.join(folder, f"{slug}-{files.json_digest(key)[:16]}")
