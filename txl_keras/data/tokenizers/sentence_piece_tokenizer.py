"""`SentencePieceTokenizer`: the ids are those of the pieces of a model."""

import base64
import pathlib
import threading

import numpy as np
import tensorflow as tf
from google.protobuf import empty_pb2
from google.protobuf import message
from google.protobuf import unknown_fields

from txl_keras.data.tokenizers.subword_tokenizer import import_extra
from txl_keras.data.tokenizers.subword_tokenizer import join_lines
from txl_keras.data.tokenizers.subword_tokenizer import split_lines
from txl_keras.data.tokenizers.subword_tokenizer import train_pieces
from txl_keras.data.tokenizers.token_ids import check_ids
from txl_keras.data.vocabulary import smallest_dtype

# What sentencepiece writes for a space.
_SPACE = "\u2581"
_LOADING = threading.Lock()
# Numbers of sentencepiece's `ModelProto`: of its fields, and of piece types.
_PIECES, _NORMALIZER, _DENORMALIZER = 1, 3, 5
_PIECE, _TYPE = 1, 3
_CHARSMAP = 2
_ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 3, 4
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
# Appended to a serialized model, this overrides its `add_dummy_prefix`.
_NO_DUMMY_PREFIX = bytes([_NORMALIZER << 3 | 2, 2, _ADD_DUMMY_PREFIX << 3, 0])


class SentencePieceTokenizer:
    """Ids are those of the pieces of a SentencePiece model.

    A model of `train` loses nothing: `decode(encode(text)) == text` for every
    text that is valid UTF-8, so that bits per byte can be computed. Spaces and
    newlines are characters of its pieces, a character that no piece has is
    spelled by its bytes.

    Published models are as lossy as they were made: many apply Unicode
    normalization, join spaces, or replace unknown characters by one piece.

    TensorFlow Text does the work, on all cores and without holding Python's
    lock: encode blocks of text in threads, and not in forked processes, where
    TensorFlow does not work.

    Args:
        model: `bytes`, a serialized SentencePiece model.
        line_end: Optional string. The piece put in the place of a newline,
            such as `"<eop>"` for XLNet. With None the model reads newlines:
            those of `train` have a piece for it, most others take it for a
            space.

    Attributes:
        vocabulary_size: Integer.
        unknown_id: Optional integer. The id of what the model has no piece
            for; no text of a model of `train` has it.

    Raises:
        ImportError: If TensorFlow Text is not installed.
        ValueError: If this is no model, or `line_end` none of its pieces.

    Example:

    >>> tokenizer = SentencePieceTokenizer.train(["a cat\\n" * 9], 262)
    >>> ids = tokenizer.encode("a  cat\\n\\tnaïve")
    >>> tokenizer.decode(ids)
    'a  cat\\n\\tnaïve'
    """

    unit = "subword"
    releases_gil = True

    def __init__(self, model, line_end=None):
        if not isinstance(model, bytes):
            raise ValueError(
                "`model` must be the bytes of a SentencePiece model. "
                f"Received: {type(model).__name__}"
            )
        pieces, normalizer = _read_model(model)
        names = [piece for piece, _ in pieces]
        if line_end is not None and line_end not in names:
            raise ValueError(
                "`line_end` must be None or a piece of the model. "
                f"Received: line_end={line_end!r}"
            )
        self.model = model
        self.line_end = line_end
        self.vocabulary_size = len(pieces)
        types = [kind for _, kind in pieces]
        self.unknown_id = types.index(_UNKNOWN) if _UNKNOWN in types else None
        self._texts = [_piece_text(piece, kind) for piece, kind in pieces]
        self._line_end_id = None
        self.newline_id = names.index("\n") if "\n" in names else None
        if line_end is not None:
            self._line_end_id = self.newline_id = names.index(line_end)
            self._texts[self._line_end_id] = b"\n"
        self._has_prefix = bool(normalizer.get(_ADD_DUMMY_PREFIX, True))
        self._trims = bool(normalizer.get(_REMOVE_EXTRA_WHITESPACES, True))
        try:
            _load(model)
        except tf.errors.OpError as error:
            raise ValueError(
                f"`model` is no SentencePiece model: {error.message}"
            ) from error

    @property
    def is_lossless(self):
        """Whether decoding gives back every text, as of a model of `train`."""
        return not self._has_prefix and not self._trims

    @classmethod
    def from_file(cls, path, line_end=None):
        """Reads a model file, such as the `spiece.model` of XLNet.

        Args:
            path: String or `pathlib.Path`.
            line_end: As for the class.

        Returns:
            A `SentencePieceTokenizer`.
        """
        return cls(pathlib.Path(path).read_bytes(), line_end)

    @classmethod
    def train(
        cls,
        texts,
        vocabulary_size,
        model_type="unigram",
        character_coverage=0.9995,
        max_lines=1_000_000,
    ):
        """Learns a model that loses nothing; the same one every time.

        Its first 258 pieces are `<unk>`, the newline and the 256 bytes.

        Args:
            texts: Iterable of `bytes` in UTF-8 or of `str`: blocks of text,
                best of whole lines.
            vocabulary_size: Integer.
            model_type: String, `"unigram"` or `"bpe"`. The latter learns ten
                times faster and encodes four times slower.
            character_coverage: Float. How much of the text consists of
                characters that get a piece; others are spelled by bytes.
            max_lines: Integer. Of more lines than these a sample is read.
                Lines of more than 1000 characters count as several.

        Returns:
            A `SentencePieceTokenizer`.

        Raises:
            ImportError: If sentencepiece is not installed.
            ValueError: If the texts are empty, if the type is neither of the
                two, or if the vocabulary size is too small for the characters
                of the text or too large for the text.
        """
        if model_type not in ("unigram", "bpe"):
            raise ValueError(
                "`model_type` must be 'unigram' or 'bpe'. "
                f"Received: model_type={model_type!r}"
            )
        model = train_pieces(
            texts,
            vocabulary_size,
            max_lines,
            model_type=model_type,
            character_coverage=character_coverage,
            byte_fallback=True,
            add_dummy_prefix=False,
            user_defined_symbols=["\n"],
            pad_id=-1,
        )
        # The trainer writes spaces as U+2581, which a text may have itself.
        # Pieces with true spaces keep the two apart.
        model.normalizer_spec.escape_whitespaces = False
        for piece in model.pieces:
            piece.piece = piece.piece.replace(_SPACE, " ")
        return cls(model.SerializeToString(deterministic=True))

    def encode(self, text, begins_line=True):
        """Turns text into ids, every line by itself.

        Args:
            text: `bytes` in UTF-8, or `str`.
            begins_line: Boolean. False says that the text goes on with a line
                of which the part before was encoded already: a model that
                puts a space before every line puts none here.

        Returns:
            Array of shape `(n,)` of the smallest of uint8, uint16 and int32
            that holds the vocabulary.

        Raises:
            ValueError: If the text is not valid UTF-8.
        """
        lines = split_lines(text, keep_ends=self.line_end is None)
        has_begun = self._has_prefix and not begins_line
        # A model that trims lines puts back the space they began with.
        if self._trims and b"".join(lines[:1]).startswith(b" "):
            has_begun = False
        if has_begun:
            first = _tokenize(lines[:1], self.model + _NO_DUMMY_PREFIX)
            others = _tokenize(lines[1:], self.model)
            tokens = tf.concat([first, others], axis=0)
        else:
            tokens = _tokenize(lines, self.model)
        ids = join_lines(tokens, self._line_end_id)
        return ids.astype(smallest_dtype(self.vocabulary_size))

    def decode_bytes(self, ids):
        """Turns ids into bytes, of which those of several calls fit together.

        They may end amid a character: feed them to
        `codecs.getincrementaldecoder("utf-8")` to show text while it is
        generated. With models that put a space before every line, lines
        begin with it.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.

        Returns:
            `bytes`, in UTF-8.

        Raises:
            ValueError: If an id is not in `[0, vocabulary_size)`.
        """
        ids = check_ids(ids, self.vocabulary_size).tolist()
        return b"".join(self._texts[i] for i in ids)

    def decode(self, ids):
        """Turns ids into a `str`, without the space a model puts before lines.

        Broken characters become U+FFFD.
        """
        text = self.decode_bytes(ids).decode("utf-8", errors="replace")
        if self._has_prefix:
            text = text.replace("\n ", "\n").removeprefix(" ")
        return text

    def as_tf_text(self):
        """The TensorFlow Text tokenizer, for graphs; it knows no `line_end`."""
        return _load(self.model)

    def get_config(self):
        """The configuration; the model is in base64, so that it is JSON."""
        return {
            "model": base64.b64encode(self.model).decode("ascii"),
            "line_end": self.line_end,
        }

    @classmethod
    def from_config(cls, config):
        model = base64.b64decode(config["model"], validate=True)
        return cls(**{**config, "model": model})


def _load(model):
    """The tokenizer of TensorFlow Text, which is cheap to make again.

    It is made for every call: `keras.utils.set_random_seed` takes away what
    TensorFlow has loaded, and a tokenizer that was kept would fail.
    """
    text = import_extra("tensorflow_text")
    # Of two threads that load a model at once, one would take it away again.
    with _LOADING:
        return text.SentencepieceTokenizer(model=model)


def _tokenize(lines, model):
    return _load(model).tokenize(tf.constant(lines, tf.string))


def _read_model(model):
    """Reads a model without the package that is only needed for training.

    Returns:
        List of each piece and its type, and the fields of the normalizer.
    """
    pieces = []
    normalizer, denormalizer = {}, {}
    try:
        for number, data in _fields(model):
            if number == _PIECES:
                piece = dict(_fields(data))
                kind = piece.get(_TYPE, _NORMAL)
                pieces.append((piece[_PIECE].decode("utf-8"), kind))
            elif number == _NORMALIZER:
                normalizer.update(_fields(data))
            elif number == _DENORMALIZER:
                denormalizer.update(_fields(data))
        for fields in (normalizer, denormalizer):
            _check_charsmap(fields.get(_CHARSMAP, b""))
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        message.DecodeError,
    ) as error:
        raise ValueError(
            f"`model` is no SentencePiece model: {error!r}"
        ) from error
    if not pieces:
        raise ValueError("`model` is no SentencePiece model: it has no pieces.")
    return pieces, normalizer


def _check_charsmap(data):
    """Checks a compiled map of characters, in which native code trusts.

    Its size, a trie of 32 bits a unit (of darts-clone), and the strings that
    its leaves point to. Steps and leaves must not lead out of these.
    """
    if not data:
        return
    size = int.from_bytes(data[:4], "little")
    strings = data[4 + size :]
    if not size or size % 1024 or not strings.endswith(b"\0"):
        raise ValueError("its map of characters is damaged")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    is_node = units >> 31 == 0
    offset = (units >> 10) << ((units & 1 << 9) >> 6)
    child = np.arange(len(units)) ^ offset
    leads_out = (child | 255) >= len(units)
    has_leaf = is_node & (units & 1 << 8 > 0) & ~leads_out
    leaves = units[child[has_leaf]] & (1 << 31) - 1
    if (is_node & leads_out).any() or (leaves >= len(strings)).any():
        raise ValueError("its map of characters is damaged")


def _fields(data):
    """Number and value of every field of a serialized message."""
    fields = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(data))
    return [(field.field_number, field.data) for field in fields]


def _piece_text(piece, kind):
    if kind == _CONTROL:
        return b""
    if kind == _BYTE:
        return bytes([int(piece.strip("<>"), 16)])
    return piece.replace(_SPACE, " ").encode("utf-8")
