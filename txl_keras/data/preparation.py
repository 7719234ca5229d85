"""Prepares text: from a corpus to arrays of ids on disk, once.

What was prepared lies in a folder of its own for every corpus, tokenizer and
split, named after a hash of all that the ids depend on:

FOLDER/enwik8_bytes-1f0c.../train/tokens.bin     the ids, see `token_files`
FOLDER/enwik8_bytes-1f0c.../train/documents.bin  int64, where documents begin
FOLDER/enwik8_bytes-1f0c.../train/metadata.json  sizes, dtype, hashes

A tokenizer that had to read the text to know its vocabulary is kept, too. All
of it may be deleted: it is made again.

It is written under another name and renamed when it is complete, so that a
stopped preparation leaves nothing that looks like one. Buckets rename no
folders: there it is complete when metadata.json is there, which is written
last.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import threading

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import modification_time
from txl_keras.data.token_files import open_token_file
from txl_keras.data.token_writer import DOCUMENTS_FILE
from txl_keras.data.token_writer import TOKENS_FILE
from txl_keras.data.token_writer import write_tokens
from txl_keras.data.tokenizers import build_tokenizer
from txl_keras.data.tokenizers import load_tokenizer
from txl_keras.data.tokenizers import save_tokenizer

# Raised when the same text and tokenizer would give other files.
FORMAT = 1
METADATA_FILE = "metadata.json"
METADATA = (
    "num_tokens", "num_documents", "num_bytes", "num_unknown",
    "vocabulary_size", "dtype", "sha256", "documents_sha256", "split",
    "tokenizer",
)  # fmt: skip
_HOME_DATA_DIR = "~/tensorflow_datasets"
BLOCK = 1 << 22  # ids hashed at once
# More are hashed only if they were written after their metadata, and what is
# in a bucket never: that would read all of it.
HASHED_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class PreparedSplit:
    """The ids of a split, on disk.

    Args:
        tokens: Ids, `(n,)`: what `open_token_file` returns.
        documents: Array of shape `(D,)`, int64. Where in the tokens each
            document begins.
        metadata: Dict of `num_tokens`, `num_documents`, `num_bytes`,
            `num_unknown`, `vocabulary_size`, `dtype`, `sha256` and
            `documents_sha256`, of `split`, and `tokenizer`, the hash of it.
        folder: String, where the files are.
    """

    tokens: object
    documents: np.ndarray
    metadata: dict
    folder: str

    def head(self, num_tokens=None):
        """The first tokens of the split, and the documents in them.

        Args:
            num_tokens: Optional integer. Default: all.

        Returns:
            The pair of `tokens` and `documents`.
        """
        tokens = self.tokens[:num_tokens]
        begun = np.searchsorted(self.documents, len(tokens))
        return tokens, self.documents[:begun]

    def fingerprint(self):
        """What the split is recognised by in the configuration of a run."""
        names = ("num_tokens", "sha256", "documents_sha256")
        return {name: self.metadata[name] for name in names}


def prepare_tokenizer(name, corpus, folder, **options):
    """Builds the tokenizer of a corpus, or reads what was built before.

    Args:
        name: String, as for `build_tokenizer`.
        corpus: A `Corpus`.
        folder: String. Where prepared text is kept.
        **options: As for `build_tokenizer`.

    Returns:
        A tokenizer.

    Raises:
        ValueError: As `build_tokenizer`; or if files were changed meanwhile.
    """
    if name == "bytes":  # there is nothing to be read or kept
        return build_tokenizer(name, corpus, **options)
    key = [FORMAT, corpus.fingerprint(), name, options]
    parent = _folder(folder, f"{corpus.name}_{name}_tokenizer", key)
    path = os.path.join(parent, "tokenizer.json")
    with _lock(parent):
        if tf.io.gfile.exists(path):
            return load_tokenizer(path)
        tokenizer = build_tokenizer(name, corpus, **options)
        corpus.check_unchanged()  # or it would be kept under a wrong name
        tf.io.gfile.makedirs(parent)
        save_tokenizer(tokenizer, path)
        return tokenizer


def prepare(corpus, tokenizer, folder, splits=SPLITS):
    """Turns splits of a corpus into ids on disk, or finds what was before.

    Args:
        corpus: A `Corpus`.
        tokenizer: A tokenizer.
        folder: String, local or of a bucket. Where prepared text is kept.
        splits: Sequence of strings.

    Returns:
        Dict of split to `PreparedSplit`.

    Raises:
        OSError: If the disk is full or the folder cannot be written.
        ValueError: If a split has no tokens, has a symbol that the tokenizer
            does not know, or is not what it was when it was prepared.
    """
    key = [FORMAT, corpus.fingerprint(), tokenizer_hash(tokenizer)]
    parent = _folder(folder, f"{corpus.name}_{tokenizer.unit}s", key)
    prepared = {}
    for split in splits:
        path = os.path.join(parent, split)
        with _lock(parent):
            if not tf.io.gfile.exists(os.path.join(path, METADATA_FILE)):
                _write_split(corpus, split, tokenizer, path)
        prepared[split] = open_split(path, tokenizer)
    return prepared


def open_split(folder, tokenizer):
    """Opens the ids of a split that `prepare` wrote.

    Args:
        folder: String, that of the split.
        tokenizer: The tokenizer that the ids are of.

    Returns:
        A `PreparedSplit`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If the ids are of another tokenizer, or the files are not
            those that were written.
    """
    metadata_path = os.path.join(folder, METADATA_FILE)
    metadata = _read_metadata(metadata_path)
    expected = tokenizer_hash(tokenizer)
    if metadata["tokenizer"] != expected:
        raise ValueError(
            f"`tokenizer` is not that of the ids in {folder}: its vocabulary "
            f"or its options differ. Expected: {metadata['tokenizer']}. "
            f"Received: {expected}"
        )
    tokens_path = os.path.join(folder, TOKENS_FILE)
    tokens = open_token_file(tokens_path, metadata["dtype"])
    documents = open_token_file(os.path.join(folder, DOCUMENTS_FILE), np.int64)
    split = PreparedSplit(tokens, documents[:], metadata, folder)
    for name in ("tokens", "documents"):
        _check_same(split, f"num_{name}", len(getattr(split, name)))
    _check_same(split, "split", os.path.basename(folder))
    _check_same(split, "documents_sha256", _hash_ids(split.documents))
    if not is_remote(folder):
        written = modification_time(tokens_path)
        small = len(tokens) * tokens.dtype.itemsize <= HASHED_BYTES
        if small or written > modification_time(metadata_path):
            check_hash(split)
    return split


def check_hash(split):
    """Raises ValueError unless the ids of a split are those prepared."""
    _check_same(split, "sha256", _hash_ids(split.tokens))


def _check_same(split, key, received):
    if split.metadata[key] != received:
        raise ValueError(
            f"{split.folder} was changed after it was prepared: delete it. "
            f"Expected: {key} {split.metadata[key]}. Received: {received}"
        )


def _hash_ids(ids):
    digest = hashlib.sha256()
    for start in range(0, len(ids), BLOCK):
        digest.update(ids[start : start + BLOCK].tobytes())
    return digest.hexdigest()


def token_folder(data_dir=None):
    """Where prepared text is kept.

    Args:
        data_dir: Optional string. Default: the folder of TensorFlow Datasets,
            `TFDS_DATA_DIR` or `~/tensorflow_datasets`.

    Returns:
        String.
    """
    data_dir = data_dir or os.environ.get("TFDS_DATA_DIR") or _HOME_DATA_DIR
    return os.path.join(os.path.expanduser(data_dir), "txl_keras_tokens")


def tokenizer_hash(tokenizer):
    """What ids are recognised by as those of a tokenizer: a SHA-256."""
    return _hash([type(tokenizer).__name__, tokenizer.get_config()])


def _write_split(corpus, split, tokenizer, path):
    unfinished = path
    if not is_remote(path):
        unfinished = f"{path}.incomplete-{os.getpid()}"
        # Killed preparations left them; no other runs now: see `_lock`.
        for folder in tf.io.gfile.glob(f"{path}.incomplete-*"):
            tf.io.gfile.rmtree(folder)
    tf.io.gfile.makedirs(unfinished)
    try:
        corpus.check_unchanged()
        metadata = write_tokens(corpus, split, tokenizer, unfinished)
        corpus.check_unchanged()
        metadata |= {"split": split, "tokenizer": tokenizer_hash(tokenizer)}
        if not metadata["num_tokens"]:
            raise ValueError(
                f"The {split} split of {corpus.name} must have at least one "
                f"token. Received: {metadata['num_bytes']} bytes without any"
            )
        metadata_path = os.path.join(unfinished, METADATA_FILE)
        with tf.io.gfile.GFile(metadata_path, "w") as file:
            file.write(json.dumps(metadata, indent=1) + "\n")
        if unfinished != path:
            if tf.io.gfile.exists(path):  # without its metadata
                tf.io.gfile.rmtree(path)
            tf.io.gfile.rename(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.rmtree(unfinished)
        if isinstance(error, tf.errors.ResourceExhaustedError):
            raise OSError(
                f"The ids of {corpus.name} could not be written to {path}; "
                "the next run begins anew. Free some space, or give another "
                f"--data_dir. {error.message}"
            ) from error
        raise


def _read_metadata(path):
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(
            f"`folder` must be that of a prepared split: there is no {path}."
        )
    with tf.io.gfile.GFile(path, "rb") as file:
        text = file.read()
    try:
        metadata = json.loads(text)
        missing = set(METADATA) - set(metadata)
    except (ValueError, TypeError) as error:
        missing = error
    if missing:
        raise ValueError(f"{path} is damaged: delete its folder. ({missing})")
    return metadata


_ONE_THREAD = threading.Lock()


@contextlib.contextmanager
def _lock(path):
    """Lets one process of this machine at a time prepare what `path` names."""
    if is_remote(path):
        yield
        return
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = open(path + ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise OSError(
            "`data_dir` must be a folder that can be written to; name the one "
            "that only holds files by `manual_dir`. Received: "
            f"{os.path.dirname(path)} ({error.strerror})"
        ) from error
    # A lock of this process alone: forked workers do not keep it. So threads
    # of this process need another.
    with _ONE_THREAD, file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another process that prepares {path}.")
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _folder(folder, name, key):
    name = os.path.basename(name.rstrip("/"))
    slug = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[-40:]
    return os.path.join(folder, f"{slug}-{_hash(key)[:16]}")


def _hash(content):
    return hashlib.sha256(json.dumps(content).encode("utf-8")).hexdigest()
