"""Tokenizers of other libraries: Hugging Face's `tokenizers`, and KerasHub."""

import functools
import json
import re
from typing import Any
from typing import Self

import numpy as np

from txl_keras.checks import shown
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_string
from txl_keras.data.tokenizers.tokenizer import check_ids
from txl_keras.data.vocabulary import smallest_dtype
from txl_keras.json_files import open_checked
from txl_keras.lazy import import_extra
from txl_keras.types import PathLike

_MAX_BYTES = 32 << 20  # for a tokenizer.json; the largest have 262,144 tokens
_MAX_IDS = 1 << 20
# With these the text of a token does not depend on the tokens after it.
_DECODERS = {
    *("Sequence", "ByteLevel", "Metaspace", "WordPiece", "ByteFallback"),
    *("Fuse", "Replace", "Strip"),
}
# The characters that stand for bytes in the vocabularies of GPT-2 and others.
_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(_OTHERS)
}
# Components that put a space before a text, and settings without the space.
_NO_PREFIX = {
    "ByteLevel": {"add_prefix_space": False},
    "Metaspace": {"prepend_scheme": "never"},
    "Prepend": {"prepend": ""},
}


class HuggingFaceTokenizer(Tokenizer):
    """Encodes text with Hugging Face's library `tokenizers`.

    No special tokens are added to a text, and it is never truncated. Names of
    special tokens in a text become these tokens. `is_lossless` is true for
    byte-level vocabularies such as those of GPT-2 and Llama 3. SavedModels of
    raw text cannot contain this tokenizer.

    Args:
        definition: String, the content of a `tokenizer.json`:
            `tokenizer.to_str()` for a tokenizer in memory, or
            `tokenizer.backend_tokenizer.to_str()` for one of transformers.

    Example:

    >>> import tokenizers
    >>> library = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    >>> HuggingFaceTokenizer(library.to_str()).encode("aa").tolist()
    [0, 0]
    """

    unit = "subword"

    def __init__(self, definition: str):
        self.definition = definition
        self._tokenizer = tokenizer = _parse(definition)
        ids, model = tokenizer.get_vocab(), tokenizer.model
        if not ids or max(ids.values()) >= _MAX_IDS:
            raise _unreadable(f"its ids must be below {_MAX_IDS:,}")
        self.vocabulary_size = 1 + max(ids.values())
        self.unknown_id = ids.get(getattr(model, "unk_token", None))
        decoders = _types(tokenizer.decoder)
        if not decoders <= _DECODERS:
            names = sorted(decoders - _DECODERS)
            raise _unreadable(f"its decoder must not have {names}")
        self._is_byte_level = decoders == {"ByteLevel"}
        parts = _types(tokenizer.pre_tokenizer)
        added = tokenizer.get_added_tokens_decoder().values()
        self.is_lossless = (
            self._is_byte_level
            and ids.keys() >= _BYTES.keys()
            # WordPiece and WordLevel lose what they have no token for.
            and type(model).__name__ in ("BPE", "Unigram")
            and not getattr(model, "continuing_subword_prefix", None)
            and not getattr(model, "end_of_word_suffix", None)
            and tokenizer.normalizer is None
            and {"ByteLevel"} <= parts
            and parts <= {"Sequence", "Split", "Digits", "ByteLevel"}
            and not re.search(
                b'"Removed"|"add_prefix_space":true',
                tokenizer.pre_tokenizer.__getstate__(),
            )
            and not any(token.lstrip or token.rstrip for token in added)
        )

    @classmethod
    def from_file(cls, path: PathLike) -> Self:
        """Loads a `tokenizer.json` without executing any code in it.

        Args:
            path: String or `pathlib.Path`.
        """
        with open_checked(path, _MAX_BYTES) as file:
            data = file.read()
        try:
            return cls(as_string(data))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def encode(self, text, begins_line=True):
        tokenizer = self._tokenizer if begins_line else self._without_prefix
        ids = tokenizer.encode(as_string(text), add_special_tokens=False).ids
        return np.array(ids, smallest_dtype(self.vocabulary_size))

    def decode(self, ids):
        ids = check_ids(ids, self.vocabulary_size).tolist()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    @functools.cached_property
    def _texts(self):
        tokens = [""] * self.vocabulary_size
        for token, token_id in self._tokenizer.get_vocab().items():
            tokens[token_id] = token
        if self._is_byte_level:
            added = self._tokenizer.get_added_tokens_decoder()
            return _byte_level_texts(tokens, added)
        decode = functools.partial(
            self._tokenizer.decode_batch, skip_special_tokens=False
        )
        return _texts_in_context(tokens, decode)

    @functools.cached_property
    def _without_prefix(self):
        def change(part):
            return part | _NO_PREFIX.get(part.get("type"), {})

        content = json.loads(self.definition, object_hook=change)
        return _parse(json.dumps(content))


class KerasHubTokenizer(Tokenizer):
    """Encodes text with a tokenizer of KerasHub.

    Set `model.tokenizer = KerasHubTokenizer(tokenizer)`. The model then trains
    and generates with it, but cannot be saved or exported, because KerasHub
    saves tokenizers in files of their own.

    Args:
        tokenizer: An object with `tokenize`, `detokenize`, `id_to_token` and
            `vocabulary_size()`, and without `sequence_length`, such as a
            `keras_hub.tokenizers.BytePairTokenizer`.
    """

    unit = "subword"

    def __init__(self, tokenizer: Any):
        methods = ("tokenize", "detokenize", "id_to_token", "vocabulary_size")
        length = getattr(tokenizer, "sequence_length", None)
        if length or not all(hasattr(tokenizer, name) for name in methods):
            raise ValueError(
                f"`tokenizer` must have the methods {', '.join(methods)}, like "
                "KerasHub's, and no `sequence_length`, which would pad "
                f"and truncate texts. Received: {shown(tokenizer)}, "
                f"sequence_length={length}"
            )
        self._tokenizer = tokenizer
        self.vocabulary_size = int(tokenizer.vocabulary_size())
        tokens = [tokenizer.id_to_token(i) for i in range(self.vocabulary_size)]
        added = getattr(tokenizer, "unsplittable_tokens", None) or ()
        if hasattr(tokenizer, "merges"):
            self._texts = _byte_level_texts(tokens, {*map(tokens.index, added)})
        elif tokens == [chr(i) for i in range(256)]:
            self._texts = [bytes([i]) for i in range(256)]
        else:
            self._has_prefix = True
            self._texts = _texts_in_context(
                tokens, lambda rows: [*map(self._detokenize, rows)]
            )

    def encode(self, text, begins_line=True):
        ids = np.asarray(self._tokenizer.tokenize(as_string(text)))
        return ids.reshape(-1).astype(smallest_dtype(self.vocabulary_size))

    def get_config(self):
        raise ValueError(
            "A `KerasHubTokenizer` cannot be saved. To save the model, use "
            "`SentencePieceTokenizer(tokenizer.proto)`, `ByteTokenizer()`, or "
            "`HuggingFaceTokenizer` with the tokenizer.json of the same model."
        )

    def _detokenize(self, ids):
        text = self._tokenizer.detokenize(ids)
        text = text.numpy() if hasattr(text, "numpy") else text
        return text.decode() if isinstance(text, bytes) else str(text)


def _parse(definition):
    tokenizers = import_extra("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library has no error classes
        raise _unreadable(error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer


def _unreadable(reason):
    return ValueError(
        "`definition` must be the content of a tokenizer.json of Hugging Face: "
        "load a file with `HuggingFaceTokenizer.from_file`. Received: "
        f"{str(reason)[:200]}"
    )


def _types(component):
    """Returns the names of all parts of a tokenizer's component."""
    state = b"" if component is None else component.__getstate__()
    return {name.decode() for name in re.findall(rb'"type":"(\w+)"', state)}


def _byte_level_texts(tokens, added):
    """Returns the bytes of tokens whose characters stand for bytes."""
    return [
        token.encode()
        if i in added or not _BYTES.keys() >= {*token}
        else bytes(map(_BYTES.__getitem__, token))
        for i, token in enumerate(tokens)
    ]


def _texts_in_context(tokens, decode):
    """Returns the bytes that each token adds to a text before it."""
    # A token alone would be decoded without the space that words begin with.
    alone = decode([[i] for i in range(len(tokens))])
    first = next((i for i, text in enumerate(alone) if text.isalnum()), 0)
    pairs = decode([[first, i] for i in range(len(tokens))])
    texts = [pair.removeprefix(alone[first]).encode() for pair in pairs]
    for i, token in enumerate(tokens):
        if byte := re.fullmatch("<0x([0-9A-F]{2})>", token):
            texts[i] = bytes.fromhex(byte[1])
    return texts
