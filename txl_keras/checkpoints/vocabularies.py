"""Imports the vocabularies of published models."""

import math
import os
import re

from txl_keras.checkpoints.safe_pickle import ZIP_MAGIC
from txl_keras.checkpoints.safe_pickle import load
from txl_keras.data.corpora.files import checked_text
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.vocabulary import Vocabulary
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import open_checked
from txl_keras.json_files import parse_json
from txl_keras.types import PathLike

_FORMATS = (
    "Expected text with one symbol per line; JSON with a list of symbols, an "
    "object from symbol to id or a txl_keras tokenizer; or a pickle "
    "(`vocab.pkl`, `vocab.bin`, `cache.pkl`) of an object with idx2sym."
)
_MAX_SYMBOLS = 1 << 20  # the One Billion Word Benchmark has 793,471
_MAGICS = (ZIP_MAGIC, b"\x80")  # of torch.save, and of pickles
_JSON_START = re.compile(r'\s*[\[{]\s*["\]}]')
# The classes of the original code and NVIDIA's (`__main__` if the file ran as a
# script), and Hugging Face's tokenizer under all names of its package and
# module. Also the encoded text that a Corpus has beside its Vocab, and members
# of a TransfoXLTokenizer that split and join words.
_NAMES = (
    r"(__main__|data_utils|(utils\.)?vocabulary)\.(Corpus|Vocab)"
    r"|(pytorch_pretrained_bert|pytorch_transformers|transformers)\.[\w.]+"
    r"|numpy\.[\w.]+|re\._compile|sacremoses\.[\w.]+|tokenizers\.AddedToken"
)


def load_vocabulary(path: PathLike) -> list[str]:
    """Reads the symbols of a vocabulary, in the order of their ids.

    The format is determined by the content of the file. The name only matters
    for a `.txt` file, which is never JSON, since `[` may be its first symbol.
    The formats:

    - Text: the first word of each line is a symbol.
    - JSON: a list of symbols; an object from symbol to id; the
      `tokenizer.json` of a run.
    - Pickles of the original code (`cache.pkl`, a `Corpus` or its `Vocab`) and
      of Hugging Face (`vocab.pkl`, and `vocab.bin` in either format of
      `torch.save`). They are read without PyTorch and without importing or
      calling any code that they name.

    Args:
        path: String or `pathlib.Path`.

    Returns:
        List of distinct strings.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "vocab.txt"
    >>> _ = path.write_text("<eos>\\nthe\\n<unk>\\n")
    >>> load_vocabulary(path)
    ['<eos>', 'the', '<unk>']
    """
    try:
        symbols = _find_symbols(_read(os.fspath(path)))
        return list(Vocabulary(symbols))
    except ValueError as error:
        raise ValueError(
            f"{path} has no vocabulary that can be read: {error}"
        ) from error


def _read(path):
    """Reads the content of a file, as plain types."""
    with open_checked(path, math.inf) as file:
        head = file.read(4)
    if head.startswith(_MAGICS):
        if is_remote(path):
            raise ValueError("a pickle must be a local file: copy it.")
        return load(path, _NAMES)[0]
    with open_checked(path, MAX_VOCABULARY_BYTES) as file:
        data = file.read()
    try:
        text = b"".join(checked_text([data], path)).decode()
    except ValueError as error:
        raise ValueError(f"{error} {_FORMATS}") from error
    if not path.endswith(".txt") and _JSON_START.match(text):
        return parse_json(text, "it", (dict, list))
    if text.count("\n") > _MAX_SYMBOLS:
        raise ValueError(f"it must have at most {_MAX_SYMBOLS:,} symbols.")
    lines = text.removesuffix("\n").split("\n")
    words = [line.split(None, 1) for line in lines]
    if [] in words:
        number = words.index([]) + 1
        raise ValueError(f"line {number} has no symbol. {_FORMATS}")
    return [word for word, *_ in words]


def _find_symbols(content):
    """Returns the list of symbols in the content of a file."""
    if isinstance(content, dict) and isinstance(content.get("vocab"), dict):
        content = content["vocab"]  # from a Corpus to its Vocab
    if isinstance(content, dict):
        config = content.get("config")  # a txl_keras tokenizer's
        if isinstance(config, dict):
            content = config.get("vocabulary")
        elif any(type(i) is not int for i in content.values()):
            content = content.get("idx2sym")
    if isinstance(content, dict):
        return _in_order(content)
    if isinstance(content, list):
        return content
    raise ValueError(f"it holds something else. {_FORMATS}")


def _in_order(ids):
    """Returns symbols in the order of their ids, which must be 0 to n - 1."""
    # Sorted: a dictionary of ids that all have one hash would take minutes.
    symbols = sorted(ids, key=ids.get)
    for number, symbol in enumerate(symbols):
        if ids[symbol] != number:
            raise ValueError(
                f"the ids of {len(ids)} symbols must be 0 to {len(ids) - 1}. "
                f"Received: {ids[symbol]} in place of {number}"
            )
    return symbols
