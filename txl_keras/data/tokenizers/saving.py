"""Saves and loads tokenizers, and hashes them."""

import json
import os

from txl_keras import data
from txl_keras.checks import shown
from txl_keras.data.corpora.files import json_digest
from txl_keras.data.corpora.files import write_text
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.json_files import check_fields
from txl_keras.json_files import read_json
from txl_keras.types import PathLike

# Largest tokenizer file: about four million English words.
_MAX_BYTES = 64 << 20
_SAVED = (
    "ByteTokenizer",
    "CharacterTokenizer",
    "HuggingFaceTokenizer",
    "IdTokenizer",
    "SentencePieceTokenizer",
    "WordTokenizer",
)


def save_tokenizer(tokenizer: Tokenizer, path: PathLike) -> None:
    """Writes a tokenizer to a JSON file.

    Args:
        tokenizer: A tokenizer.
        path: String or `pathlib.Path`, local or `gs://`.
    """
    content = serialize_tokenizer(tokenizer)
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    if (size := len(text.encode())) > _MAX_BYTES:
        raise ValueError(
            f"`tokenizer` must have at most {_MAX_BYTES:,} bytes in JSON, or "
            "it could not be loaded. Leave out rare words: --min_count=2 or "
            f"--vocabulary_size. Received: {size:,} bytes"
        )
    write_text(text, os.fspath(path))


def load_tokenizer(path: PathLike) -> Tokenizer:
    """Loads a tokenizer from a file that `save_tokenizer` wrote.

    Args:
        path: String or `pathlib.Path`, local or `gs://`.
    """
    path = os.fspath(path)
    return deserialize_tokenizer(read_json(path, max_bytes=_MAX_BYTES), path)


def serialize_tokenizer(tokenizer):
    """Returns the class and the config of a tokenizer, for JSON."""
    class_name = type(tokenizer).__name__
    config = tokenizer.get_config()
    if class_name not in _SAVED:
        raise ValueError(
            f"`tokenizer` cannot be saved: its class must be one of {_SAVED}, "
            "because loading runs no other code. Set `model.tokenizer = None` "
            "before saving, and give `tokenizer` to `from_preset`. Received: "
            f"tokenizer={class_name}"
        )
    return {"class_name": class_name, "config": config}


def deserialize_tokenizer(content, source):
    """Creates a tokenizer of this package; `source` names it in errors."""
    kinds = {"class_name": "a string", "config": "an object"}
    check_fields(content, kinds, source)
    class_name = content["class_name"]
    if class_name not in _SAVED:
        raise ValueError(
            f"{source} has an unknown tokenizer: `class_name` must be one of "
            f"{_SAVED}. Received: {shown(class_name)}"
        )
    try:
        return getattr(data, class_name).from_config(content["config"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        raise ValueError(
            f"{source}: `config` does not describe a {class_name}: {reason}"
        ) from error


def tokenizer_hash(tokenizer):
    """Returns a SHA-256 that identifies a tokenizer and its options."""
    return json_digest([type(tokenizer).__name__, tokenizer.get_config()])
