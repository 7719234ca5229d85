"""`Tokenizer`, the base class of all tokenizers."""

import inspect
from collections.abc import Sequence

import numpy as np

from txl_keras.backend import tf
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.data.vocabulary import Vocabulary


class Tokenizer:
    """Converts text to token ids and back.

    To write your own tokenizer, define `encode` and `decode_bytes` in a
    subclass, and set `vocabulary_size`. Define `encode_in_graph`, too, if the
    tokenizer should become a part of SavedModels.

    Attributes:
        vocabulary_size: Integer. Ids are below it.
        unit: String, the kind of a token, for reports.
        unknown_id: Optional integer. The id of everything without its own id.
        is_lossless: Boolean, whether decoding restores every text, for a
            `CharacterTokenizer` with `drop_newlines` except for its newlines.
            Only then can bits per byte be computed.
        releases_gil: Boolean, whether `encode` runs in parallel in threads.
            Otherwise large texts are encoded in other processes.
    """

    vocabulary_size: int
    unit = "token"
    unknown_id = None
    is_lossless = False
    releases_gil = False
    _has_prefix = False  # whether decoded lines begin with a space

    def encode(self, text: str | bytes, begins_line: bool = True) -> np.ndarray:
        """Encodes text as ids.

        Args:
            text: `bytes` in UTF-8, or `str`.
            begins_line: Boolean. False if the text continues a line whose first
                part was already encoded: then no start of a line is marked.

        Returns:
            Array of shape `(n,)` and of the smallest dtype of uint8, uint16 and
            int32 that holds the vocabulary.

        Raises:
            ValueError: If the text is not valid UTF-8 (except for bytes),
                or if a symbol has no id. The message gives its position.
        """
        raise NotImplementedError

    def encode_texts(
        self, texts: Sequence[str | bytes], begins_line: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of texts `(n,)`, joined, and their lengths `(B,)`.

        Each text begins a line; for the first text `begins_line` decides.
        """
        first, *others = texts
        ids = [self.encode(first, begins_line), *map(self.encode, others)]
        return np.concatenate(ids), np.array([*map(len, ids)])

    def encode_in_graph(self, text: "tf.Tensor") -> "tf.RaggedTensor":
        """Encodes texts in a TensorFlow graph, with the same ids as `encode`.

        Args:
            text: String tensor of shape `(B,)`. Each is the start of a line.

        Returns:
            int32 `tf.RaggedTensor` of shape `(B, None)`.
        """
        raise NotImplementedError

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Decodes ids to bytes; the results of successive calls can be joined.

        They may end inside a character: pass them to
        `codecs.getincrementaldecoder("utf-8")` to show text while it is
        generated. If tokens are words, each word and each line begins with a
        space.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.
        """
        ids = check_ids(ids, self.vocabulary_size).tolist()
        # Long texts repeat tokens.
        texts = {token_id: self._text(token_id) for token_id in set(ids)}
        return b"".join(map(texts.__getitem__, ids))

    def _text(self, token_id):
        """Returns the bytes of a token; by default from a list `_texts`."""
        return self._texts[token_id]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decodes ids to a `str`; invalid characters become U+FFFD.

        Leaves out the space with which `decode_bytes` begins lines of words.
        """
        text = self.decode_bytes(ids).decode("utf-8", errors="replace")
        if self._has_prefix:
            text = text.replace("\n ", "\n").removeprefix(" ")
        return text

    def ids_that_begin_with(self, text: bytes) -> list[int]:
        """Returns the ids of all tokens whose bytes begin with `text`.

        Args:
            text: `bytes`.
        """
        ids = range(self.vocabulary_size)
        return [i for i in ids if self._text(i).startswith(text)]

    def get_config(self):
        """Returns the constructor's arguments, which are attributes, too."""
        names = inspect.signature(type(self)).parameters
        config = {name: getattr(self, name) for name in names}
        return {
            name: [*value] if isinstance(value, Vocabulary) else value
            for name, value in config.items()
        }

    @classmethod
    def from_config(cls, config):
        """Creates a tokenizer from the result of `get_config`."""
        return cls(**config)


def as_bytes(text):
    """Returns text as `bytes` in UTF-8, or raises ValueError."""
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    if not isinstance(text, str):  # for example 5: `bytes(5)` is five zeros
        raise ValueError(
            "`text` must be `bytes` or `str`. "
            f"Received: {shown(text)} of type {type(text).__name__}"
        )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            "`text` must be encodable in UTF-8. Received: "
            f"{text[error.start]!r} at position {error.start}"
        ) from error


def as_string(text):
    """Returns text as a `str` that can be encoded, or raises ValueError."""
    data = as_bytes(text)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            "`text` must be UTF-8. Received: byte "
            f"{data[error.start]:#04x} at position {error.start}"
        ) from error


def check_ids(ids, vocabulary_size):
    """Returns ids as an array of shape `(n,)`, or raises ValueError."""
    ids = np.atleast_1d(np.asarray(ids))
    if ids.ndim != 1:
        raise ValueError(
            f"`ids` must be of shape (n,). Received: shape {ids.shape}"
        )
    if not ids.size:  # of any dtype
        return ids.astype(np.int32)
    return check_token_ids("ids", ids, vocabulary_size)
