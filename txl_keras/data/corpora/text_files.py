"""Text of the user's own: a file, or a folder of files, in UTF-8."""

import pathlib

from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.files import read_file
from txl_keras.data.corpora.splitting import drop_duplicates
from txl_keras.data.corpora.splitting import join_documents
from txl_keras.data.corpora.splitting import split_groups
from txl_keras.data.corpora.splitting import split_text


def load(path):
    """Reads a text file or a folder of text files and splits it.

    - A file: the first 90% are train, then 5% valid and 5% test.
    - A folder with train.txt, valid.txt and test.txt: these.
    - A folder with three or more files: whole files go to a split, about 5%
      of the bytes to each of valid and test.
    - A folder with one or two files: they are joined and cut like one file.

    Folders are read with their subfolders, without hidden and empty files; a
    text that occurs twice is kept once. Files follow each other in the order of
    their paths. Files that end in
    `.gz` are unpacked.

    Args:
        path: String, the file or the folder.

    Returns:
        A `Corpus` in UTF-8.

    Raises:
        FileNotFoundError: If nothing is there.
        ValueError: If there is no text, too little of it, or not in UTF-8.
    """
    path = pathlib.Path(path)
    splits = _load_folder(path) if path.is_dir() else _load_file(path)
    empty = [split for split in SPLITS if not splits[split]]
    if empty:
        size = sum(map(len, splits.values()))
        raise ValueError(
            f"The text in {path} is too small to give three splits: "
            f"{' and '.join(empty)} would be empty. Received: {size} bytes"
        )
    return Corpus(str(path), splits)


def _load_file(path):
    text = _read_text(path)
    if not text:
        raise ValueError(f"The file {path} is empty.")
    return split_text(text)


def _load_folder(folder):
    named = [split for split in SPLITS if (folder / f"{split}.txt").is_file()]
    if len(named) == len(SPLITS):
        return {split: _read_text(folder / f"{split}.txt") for split in SPLITS}
    if len(named) == 2:  # one alone may be any file
        raise ValueError(
            f"{folder} must have all of train.txt, valid.txt and test.txt, or "
            f"none of them. Received: only {named[0]}.txt and {named[1]}.txt"
        )
    documents = _read_folder(folder)
    if len(documents) < len(SPLITS):
        return split_text(join_documents(documents.values()))
    groups = split_groups({name: len(documents[name]) for name in documents})
    return {
        split: join_documents(documents[name] for name in sorted(names))
        for split, names in groups.items()
    }


def _read_folder(folder):
    """Returns a dict of relative path to text, sorted by path."""
    documents = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not hidden:
            documents[name.as_posix()] = _read_text(path)
    documents = drop_duplicates(
        {name: text for name, text in documents.items() if text}
    )
    if not documents:
        raise ValueError(
            f"The folder {folder} must have at least one file with text. "
            "Received: none, or only empty and hidden files"
        )
    return documents


def _read_text(path):
    text = read_file(path)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte {text[error.start]:#04x} at offset "
            f"{error.start}. Leave the file out if it is no text, or convert "
            "it, for example with `iconv -f latin1 -t utf-8 OLD > NEW`."
        ) from error
    return text
