"""`load_vocabulary`, the words of a published model from the file they lie in.

Published vocabularies are often pickles, which can name any function of any
module and have it called on loading. Here every name leads to a stand-in that
does nothing, and a name that no vocabulary needs ends the reading.
"""

import copyreg
import itertools
import json
import pathlib
import pickle
import pickletools
import re
import zipfile

from txl_keras.data.vocabulary import WordVocabulary

_UNDERSTOOD = (
    "Expected text of one symbol a line; JSON of a list of symbols, of ids by "
    "symbol or of a txl_keras tokenizer; or a pickle (`vocab.pkl`, "
    "`vocab.bin`, `cache.pkl`) of an object with idx2sym or sym2idx."
)
_HEAD = 1 << 16  # bytes that tell a format
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_MAGIC = b"\x80"  # of protocol 2 and later
_JSON_START = re.compile(r'\s*[\[{]\s*["\]}]')
# Begins a file of torch.save before its zip format.
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C


def load_vocabulary(path, size=None):
    """Reads the symbols of a vocabulary, in the order of their ids.

    The content decides what a file is, not its name; but a `.txt` file is
    never JSON, since `[` may well be its first symbol. Understood are:

    - Text: the first word of each line is a symbol.
    - JSON: a list of symbols; an object from symbol to id; an object with
      `idx2sym` or `sym2idx`; the `tokenizer.json` of a run.
    - Pickles of the original code (`cache.pkl`, a `Corpus` or its `Vocab`) and
      of Hugging Face (`vocab.pkl`, and `vocab.bin` in either format of
      `torch.save`). They are read without PyTorch. No code that they name is
      imported or called.

    Args:
        path: String or `pathlib.Path`.
        size: Optional integer, how many symbols the model needs.

    Returns:
        List of distinct strings.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is truncated, damaged or none of the above, if
            a pickle names what no vocabulary needs, if the ids are not 0 to
            n - 1, or if there are not `size` symbols.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "vocab.txt"
    >>> _ = path.write_text("<eos>\\nthe\\n<unk>\\n")
    >>> load_vocabulary(path, size=3)
    ['<eos>', 'the', '<unk>']
    """
    try:
        symbols = _find_symbols(_read(pathlib.Path(path)))
        symbols = list(WordVocabulary(symbols).symbols)
    except ValueError as error:
        raise ValueError(
            f"{path} has no vocabulary that can be read: {error}"
        ) from error
    if size is not None and len(symbols) != size:
        raise ValueError(
            f"{path} must have `size` symbols, or it is another model's. "
            f"Received: size={size}, and a file of {len(symbols)} symbols"
        )
    return symbols


def _read(path):
    """What a file holds, of plain types and stand-ins."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        file.seek(0)
        if head.startswith(_ZIP_MAGIC):
            return _read_zip(file)
        if _is_pickle(head):
            return _read_pickle(file)
        data = file.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{error}. {_UNDERSTOOD}") from error
    if "\0" in text:
        raise ValueError(f"it is of an unknown binary format. {_UNDERSTOOD}")
    if path.suffix != ".txt" and _JSON_START.match(text):
        return json.loads(text)
    return _read_lines(text)


def _read_lines(text):
    lines = {}  # by symbol
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        symbol = next(iter(line.split()), None)
        if symbol is None:
            raise ValueError(f"line {number} has no symbol. {_UNDERSTOOD}")
        if symbol in lines:
            raise ValueError(
                f"line {number} has the symbol {symbol!r} of line "
                f"{lines[symbol]} again."
            )
        lines[symbol] = number
    return list(lines)


# ----------------------------- What was read ------------------------------


def _find_symbols(content):
    """The list of symbols in what a file holds."""
    content = _fields(content)
    if isinstance(content, dict) and isinstance(content.get("vocab"), _Record):
        content = _fields(content["vocab"])  # from a Corpus to its Vocab
    symbols, ids = content, None
    if isinstance(content, dict):
        symbols, ids = content.get("idx2sym"), content.get("sym2idx")
        config = content.get("config")  # of a txl_keras tokenizer
        if isinstance(config, dict):
            symbols = config.get("vocabulary")
        elif content and all(type(i) is int for i in content.values()):
            ids = content
    symbols = _texts(symbols) if isinstance(symbols, list) else None
    if isinstance(ids, dict):
        return _in_order(ids, symbols)
    if symbols is None:
        raise ValueError(f"it holds something else. {_UNDERSTOOD}")
    return symbols


def _fields(content):
    """The state of a record, or what else it is, with text for keys."""
    if isinstance(content, _Record):
        content = content.state
    if isinstance(content, dict):
        return dict(zip(_texts(content), content.values(), strict=True))
    return content


def _texts(symbols):
    """Strings of Python 2, which come as bytes, become text."""
    return [s.decode("utf-8") if isinstance(s, bytes) else s for s in symbols]


def _in_order(ids, expected=None):
    """Symbols in the order of their ids, which must be 0 to n - 1."""
    if not all(type(i) is int for i in ids.values()):
        raise ValueError("ids must be integers.")
    by_id = dict(zip(ids.values(), _texts(ids), strict=True))
    missing = [i for i in range(len(ids)) if i not in by_id]
    if missing:
        raise ValueError(
            f"the ids of {len(ids)} symbols must be 0 to {len(ids) - 1}. "
            f"Missing: {missing[:5]}"
        )
    symbols = [by_id[i] for i in range(len(ids))]
    if expected is not None and symbols != expected:
        pairs = itertools.zip_longest(expected, symbols)
        i, (a, b) = next((i, p) for i, p in enumerate(pairs) if p[0] != p[1])
        raise ValueError(
            "idx2sym and sym2idx must agree. "
            f"Received: {a!r} and {b!r} for the id {i}"
        )
    return symbols


# -------------------------------- Pickles ---------------------------------


def _is_pickle(head):
    """Whether a file is a pickle, of whatever protocol.

    Protocol 0 is text. But no list of symbols reads as a hundred opcodes, or
    as fewer and a stop.
    """
    if head.startswith(_PICKLE_MAGIC):
        return True
    try:
        for _ in itertools.islice(pickletools.genops(head), 100):
            pass
    except UnicodeDecodeError:
        return True  # an opcode, with a string of Python 2 that is not ASCII
    except ValueError:
        return False
    return True


def _read_zip(file):
    """Reads the pickle in what torch.save writes."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            pickles = [name for name in names if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise ValueError(
                    "it is a zip file but not of torch.save, which has one "
                    f"data.pkl. Received: {names[:5]}"
                )
            with archive.open(pickles[0]) as member:
                return _read_pickle(member)
    except (zipfile.BadZipFile, RuntimeError) as error:  # also: encrypted
        raise ValueError(
            f"the zip file is truncated or damaged: {error}"
        ) from error


def _read_pickle(file):
    """Reads the object of a pickle, or of an old file of torch.save."""
    # Objects in this cache would come past `find_class`.
    copyreg.clear_extension_cache()
    try:
        content = _Unpickler(file, encoding="bytes").load()
        if content == _TORCH_MAGIC:
            # Next come a version, facts of the machine, and the object.
            for _ in range(3):
                content = _Unpickler(file, encoding="bytes").load()
        return content
    except _RefusedError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(
            f"the pickle is truncated or damaged: {error!r}"
        ) from error
    finally:
        # It now may hold stand-ins, which are for this file alone.
        copyreg.clear_extension_cache()


class _RefusedError(ValueError):
    """A pickle wants more than a vocabulary needs."""

    def __init__(self, request):
        super().__init__(
            f"the pickle asks for {request}, which no vocabulary needs. It was "
            "refused, and nothing in the file was executed."
        )


class _Unpickler(pickle.Unpickler):
    """Reads plain data; names lead to stand-ins or are refused."""

    def find_class(self, module, name):
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise _RefusedError(repr(f"{module}.{name}")) from None

    def persistent_load(self, pid):
        raise _RefusedError("data outside of it, such as tensors,")


# A pickle may call the stand-ins with any arguments, and may set their state.
# All have a `__setstate__`: without it the state of a *class* would become
# attributes of that class, for every later file.


class _Skipped:
    """Stands for an object that is not needed, and keeps nothing of it."""

    def __init__(self, *arguments):
        pass

    def __setstate__(self, state):
        pass


class _Record(_Skipped):
    """Stands for a vocabulary or what holds one: keeps its state."""

    state = None

    def __setstate__(self, state):
        self.state = state


class _Reconstructed(_Skipped):
    """Stands for the function that makes objects before protocol 2."""

    def __new__(cls, stand_in, *arguments):
        return stand_in()


def _named(stand_in, *names):
    """Looks a stand-in up by module and name, as pickles do."""
    return {tuple(name.rsplit(".", 1)): stand_in for name in names}


_STAND_INS = {
    # sym2idx.
    **_named(dict, "collections.OrderedDict"),
    # The original code, also NVIDIA's; `__main__` where a file ran as script.
    **_named(
        _Record,
        "__main__.Corpus",
        "__main__.Vocab",
        "data_utils.Corpus",
        "utils.vocabulary.Vocab",
        "vocabulary.Vocab",
    ),
    # Hugging Face, under all the names that the package and the file had.
    **_named(
        _Record,
        *(
            f"{module}.tokenization_transfo_xl.TransfoXLTokenizer"
            for module in (
                "pytorch_pretrained_bert",
                "pytorch_transformers",
                "transformers",
                "transformers.models.transfo_xl",
                "transformers.models.deprecated.transfo_xl",
            )
        ),
    ),
    # Protocols 0 and 1 make objects by this function.
    **_named(
        _Reconstructed, "copy_reg._reconstructor", "copyreg._reconstructor"
    ),
    **_named(
        _Skipped,
        # Its last but one argument.
        "__builtin__.object",
        "builtins.object",
        # How often each symbol occurred.
        "collections.Counter",
        # Plain containers without symbols, such as special tokens.
        *(
            f"{module}.{name}"
            for module in ("__builtin__", "builtins")
            for name in ("bytearray", "bytes", "frozenset", "set")
        ),
        # Bytes that Python 3 wrote in a protocol of Python 2.
        "_codecs.encode",
        # The encoded text that a Corpus has next to its Vocab.
        *(
            f"numpy.{core}.{name}"
            for core in ("core", "_core")
            for name in (
                "multiarray._reconstruct",
                "multiarray.scalar",
                "numeric._frombuffer",
            )
        ),
        "numpy.dtype",
        "numpy.ndarray",
        # Members of a TransfoXLTokenizer that split and join words.
        "re._compile",
        "sacremoses.normalize.MosesPunctNormalizer",
        "sacremoses.tokenize.MosesDetokenizer",
        "sacremoses.tokenize.MosesTokenizer",
        "tokenizers.AddedToken",
        "transformers.tokenization_utils.Trie",
        "transformers.tokenization_utils_base.AddedToken",
    ),
}
