"""Texts with labels, for classification: read, checked and split."""

import csv
import dataclasses
import hashlib
import io
import json
import sys

from txl_keras.checks import shown
from txl_keras.data.corpora.files import read_text


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """Texts, the label of each, and where each was found.

    Args:
        texts: List of strings.
        labels: List of as many strings.
        name: String. Where the texts are from.
        numbers: List of integers, the place of each there.
        unit: String. What these numbers count.

    Raises:
        ValueError: If there is no text, if there are not as many labels, or
            if a text or a label is no string, empty or nothing but spaces,
            with its place.

    Example:

    >>> texts = LabelledTexts(["Win!", "Hi"], ["spam", "ham"], "my mails")
    >>> texts.label_names()
    ['ham', 'spam']
    >>> texts.label_ids(["ham", "spam"])
    [1, 0]
    """

    texts: list
    labels: list
    name: str = "texts"
    numbers: list = None
    unit: str = "text"

    def __post_init__(self):
        if not self.texts:
            raise ValueError(f"{self.name} must have texts. Received: none")
        if len(self.texts) != len(self.labels):
            raise ValueError(
                f"{self.name} must have a label for every text. Received: "
                f"{len(self.texts)} texts and {len(self.labels)} labels"
            )
        for what in ("text", "label"):
            for i, value in enumerate(getattr(self, f"{what}s")):
                if not isinstance(value, str) or not value.strip():
                    raise ValueError(
                        f"Every {what} must be a string with at least one "
                        f"symbol. Received: {shown(value)} at {self.place(i)}"
                    )

    def __len__(self):
        return len(self.texts)

    def place(self, index):
        """String that says where a text was found."""
        number = self.numbers[index] if self.numbers else index
        return f"{self.name}, {self.unit} {number}"

    def label_names(self):
        """List of the labels there are, each once, sorted."""
        return sorted(set(self.labels))

    def label_ids(self, names):
        """Index of each label in a list.

        Args:
            names: List of the labels that a model knows.

        Returns:
            List of integers.

        Raises:
            ValueError: If a label is not in the list, with its place.
        """
        index = {name: i for i, name in enumerate(names)}
        for i, label in enumerate(self.labels):
            if label not in index:
                raise ValueError(
                    "Every label must be one of those of train, "
                    f"{shown(names)}. "
                    f"Received: {label!r} at {self.place(i)}"
                )
        return [index[label] for label in self.labels]

    def take(self, indices):
        """The `LabelledTexts` at some indices."""
        numbers = self.numbers or range(len(self))
        return dataclasses.replace(
            self,
            texts=[self.texts[i] for i in indices],
            labels=[self.labels[i] for i in indices],
            numbers=[numbers[i] for i in indices],
        )

    def split(self, share):
        """Parts the texts in two, always in the same way.

        A text goes by a hash of itself: one that occurs twice is never in
        both, and the order of the file does not matter.

        Args:
            share: Float in (0, 1), about how much goes to the second part.

        Returns:
            Two `LabelledTexts`.

        Raises:
            ValueError: If the share is out of range, or a part has no text.
        """
        if not 0 < share < 1:
            raise ValueError(
                "The share to split off must be between 0 and 1. Received: "
                f"{share}"
            )
        is_second = [_fraction(text) < share for text in self.texts]
        parts = [
            [i for i, second in enumerate(is_second) if second == part]
            for part in (False, True)
        ]
        if not all(parts):
            raise ValueError(
                f"{self.name} has too few texts to split a share of {share} "
                f"off. Received: {len(self)} texts"
            )
        return tuple(self.take(part) for part in parts)

    def fingerprint(self):
        """A SHA-256 of all texts and labels, in their order."""
        content = json.dumps([self.texts, self.labels])
        return hashlib.sha256(content.encode()).hexdigest()


def _fraction(text):
    """A number in [0, 1) that depends on nothing but the text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read_labelled_texts(path, text_column="text", label_column="label"):
    """Reads a file with a text and its label in every row.

    - `.tsv`: what lies between tabs, as it is: quotes are text.
    - `.csv`: as in RFC 4180: values with commas, quotes or newlines are quoted.
    - `.jsonl`: an object a line.

    Each may end in `.gz`. The first row of `.tsv` and `.csv` has the names of
    the columns, unless they are numbers: `"0"` is then the first column of a
    file without such a row. Empty lines are left out.

    Args:
        path: String, local, or of `gs://` and whatever else `tf.io.gfile`
            reads. In UTF-8.
        text_column: String.
        label_column: String. Labels of `.jsonl` may be integers.

    Returns:
        `LabelledTexts`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is of another kind, lacks a column, or has a
            row with more or fewer columns, or without a text or label; with
            the line.

    Example:

    ```python
    import pathlib
    from txl_keras.data import read_labelled_texts

    path = pathlib.Path("mails.tsv")
    path.write_text("ham\\tSee you.\\nspam\\tYou won!\\n")
    mails = read_labelled_texts(str(path), text_column="1", label_column="0")
    print(mails.texts)  # ['See you.', 'You won!']
    ```
    """
    kind = path.lower().removesuffix(".gz").rpartition(".")[2]
    if kind not in _RECORDS:
        raise ValueError(
            "The name of a file of texts must end with .tsv, .csv or .jsonl, "
            f"or one of these and .gz. Received: {path}"
        )
    content = b"".join(read_text(path)).decode("utf-8")
    has_header = not (text_column.isdecimal() and label_column.isdecimal())
    texts, labels, numbers = [], [], []
    for number, record in _RECORDS[kind](content, has_header, path):
        place = f"{path}, line {number}"
        texts.append(_value(record, "text_column", text_column, place))
        labels.append(_value(record, "label_column", label_column, place))
        numbers.append(number)
    return LabelledTexts(texts, labels, path, numbers, "line")


def _value(record, flag, column, place):
    if column not in record:
        columns = ", ".join(f"{name!r:.40}" for name in record)
        raise ValueError(
            f"`{flag}` must be a column of the file, one of {columns}; of a "
            f".tsv or .csv file without names in its first row, give numbers "
            f"from 0 for both columns. Received: {flag}={column!r}, {place}"
        )
    value = record[column]
    if flag == "label_column" and isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(
            f"`{flag}` must hold strings. Received: {value!r:.40} at {place}"
        )
    return value


def _tsv_records(content, has_header, path):
    # Not by `csv`, which would end a row at "\r" too.
    rows = (
        (number, line.removesuffix("\r").split("\t"))
        for number, line in enumerate(content.split("\n"), 1)
        if line.strip("\r")
    )
    return _named(rows, has_header, path)


def _csv_records(content, has_header, path):
    limit = csv.field_size_limit(sys.maxsize)  # 128 KiB by default
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        rows = ((reader.line_num, row) for row in reader if row)
        yield from _named(rows, has_header, path)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _named(rows, has_header, path):
    """Yields rows as dictionaries."""
    names = None
    for number, row in rows:
        if names is None:
            names = row if has_header else [str(i) for i in range(len(row))]
            if len(set(names)) < len(names):
                raise ValueError(
                    f"The columns of {path} must have different names. "
                    f"Received: {names}"
                )
            if has_header:
                continue
        if len(row) != len(names):
            raise ValueError(
                f"Every row must have {len(names)} columns, as the first. "
                f"Received: {len(row)} at {path}, line {number}"
            )
        yield number, dict(zip(names, row, strict=True))


def _json_records(content, has_header, path):
    del has_header  # every object has its names
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(
                "Every line must be a JSON object. Received: "
                f"{line:.40} at {path}, line {number}"
            )
        yield number, record


_RECORDS = {
    "tsv": _tsv_records,
    "csv": _csv_records,
    "jsonl": _json_records,
}
