"""Labelled texts for classification: reading, checking and splitting."""

import csv
import dataclasses
import hashlib
import math
import os
import sys
from collections.abc import Sequence
from typing import Self

from txl_keras import gfile
from txl_keras.checks import check_number
from txl_keras.checks import shown
from txl_keras.data.corpora import files
from txl_keras.json_files import open_checked
from txl_keras.json_files import parse_json
from txl_keras.types import PathLike

_MAX_TEXT_BYTES = 1 << 25  # in case a quote is never closed


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """Holds texts and their labels.

    Args:
        texts: List of strings.
        labels: List of strings, one per text.
        name: String. The source of the texts, for error messages.
        lines: Optional list of integers, the line of each text in its file.

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
    lines: list = None

    def __post_init__(self):
        if not self.texts or len(self.texts) != len(self.labels):
            raise ValueError(
                f"{self.name} must have texts, and a label for each. Received: "
                f"{len(self.texts)} texts and {len(self.labels)} labels"
            )
        for field in ("text", "label"):
            for i, value in enumerate(getattr(self, f"{field}s")):
                if not isinstance(value, str) or not value.strip():
                    raise ValueError(
                        f"Every {field} must be a string with at least one "
                        f"symbol. Received: {shown(value)} at {self._place(i)}"
                    )

    def __len__(self):
        return len(self.texts)

    def _place(self, index):
        """Describes where a text was found."""
        place = f"line {self.lines[index]}" if self.lines else f"text {index}"
        return f"{self.name}, {place}"

    def label_names(self) -> list[str]:
        """Returns the distinct labels as a sorted list."""
        return sorted(set(self.labels))

    def label_ids(self, names: Sequence[str]) -> list[int]:
        """Returns the index of each label in a list of a model's labels."""
        index = {name: i for i, name in enumerate(names)}
        for i, label in enumerate(self.labels):
            if label not in index:
                raise ValueError(
                    "Every label must be one of the training labels, "
                    f"{shown(names)}. "
                    f"Received: {label!r} at {self._place(i)}"
                )
        return [index[label] for label in self.labels]

    def split(self, share: float) -> tuple[Self, Self]:
        """Splits the texts in two parts, always in the same way.

        The part of a text depends only on a hash of the text. So duplicates are
        always in the same part, and the order of the file does not matter. But
        all texts of a label that the first part would lack are in it.

        Args:
            share: Float in (0, 1), the approximate share of the second part.
        """
        check_number("share", share, 0, 1, exclusive=True)
        parts = [], []
        for i, text in enumerate(self.texts):
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
            number = int.from_bytes(digest.digest()[:8], "big")
            parts[number < share * 2**64].append(i)
        # A label without texts in the first part could not be learned.
        known = {self.labels[i] for i in parts[0]}
        rare = {self.texts[i] for i in parts[1] if self.labels[i] not in known}
        moved = [i for i in parts[1] if self.texts[i] in rare]
        parts[0].extend(moved)
        parts[0].sort()
        parts[1][:] = [i for i in parts[1] if self.texts[i] not in rare]
        if not all(parts):
            raise ValueError(
                f"{self.name} has too few texts of each label to split off a "
                f"share of {share}: give another share, or a separate file of "
                f"texts to hold out. Received: {len(self)} texts of "
                f"{len({*self.labels})} labels"
            )
        return tuple(
            dataclasses.replace(
                self,
                texts=[self.texts[i] for i in part],
                labels=[self.labels[i] for i in part],
                lines=self.lines and [self.lines[i] for i in part],
            )
            for part in parts
        )

    def fingerprint(self) -> str:
        """Returns a SHA-256 of all texts and labels, in order."""
        return files.json_digest([self.texts, self.labels])


def read_labelled_texts(
    path: PathLike, text_column: str = "text", label_column: str = "label"
) -> LabelledTexts:
    """Reads a file with one text and its label per row.

    - `.tsv`: values between tabs, taken literally; quotes are part of the text.
    - `.csv`: as in RFC 4180; values with commas, quotes or newlines are quoted.
    - `.jsonl`: one JSON object per line.

    Each name may end in `.gz`. The first row of `.tsv` and `.csv` files has the
    names of the columns. For a file without such a row, pass column numbers
    from `"0"` as strings for both columns. Empty lines are skipped.

    Args:
        path: String or `pathlib.Path`, a local path, or `gs://` or any other
            path that `tf.io.gfile` can read. The text must be in UTF-8.
        text_column: String.
        label_column: String. Labels in `.jsonl` may be integers.

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
    path = os.fspath(path)
    kind = path.lower().removesuffix(".gz").rpartition(".")[2]
    if kind not in ("tsv", "csv", "jsonl"):
        raise ValueError(
            "The name of a file with labelled texts must end in .tsv, .csv or "
            f".jsonl, optionally followed by .gz. Received: {path}"
        )
    open_checked(path, math.inf).close()
    size = gfile.stat(path).length
    lines = files.read_between(path, b"\n", max_bytes=_MAX_TEXT_BYTES)
    lines = (line.decode() for line in lines)
    if kind == "jsonl":
        records = (
            (number, parse_json(line, f"{path}, line {number}"))
            for number, line in enumerate(lines, 1)
            if line.strip()
        )
    else:
        records = _csv_records(lines, path, kind, (text_column, label_column))
    texts, labels, numbers, taken = [], [], [], 0
    for number, record in records:
        place = f"{path}, line {number}"
        text = _value(record, "text_column", text_column, place)
        label = _value(record, "label_column", label_column, place)
        label = str(label) if isinstance(label, int) else label
        # A short text takes far more memory than its bytes.
        taken += sys.getsizeof(text)
        files.check_unpacked(path, taken // 2, size)
        texts.append(text)
        labels.append(sys.intern(label) if isinstance(label, str) else label)
        numbers.append(number)
    return LabelledTexts(texts, labels, path, numbers)


def _value(record, flag, column, place):
    if column not in record:
        raise ValueError(
            f"`{flag}` must be a column of the file, one of "
            f"{shown(list(record))}. For a .tsv or .csv file without column "
            "names in its first row, give numbers from 0 for both columns. "
            f"Received: {flag}={column!r}, {place}"
        )
    return record[column]


def _csv_records(lines, path, kind, columns):
    """Yields the line number of each row and its values by column name."""
    options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    csv.field_size_limit(_MAX_TEXT_BYTES)  # 128 KiB by default
    reader = csv.reader(
        (f"{line}\n" for line in lines),
        strict=True,
        **options if kind == "tsv" else {},
    )
    names, has_header = None, not all(map(str.isdecimal, columns))
    try:
        for row in filter(None, reader):
            if names is None:
                names = row if has_header else list(map(str, range(len(row))))
                if any(names.count(column) > 1 for column in columns):
                    raise ValueError(
                        "The columns of texts and of labels must have names "
                        f"that no other column of {path} has. Received: "
                        f"{shown(names)}"
                    )
                if has_header:
                    continue
            if len(row) != len(names):
                raise ValueError(
                    f"Every row must have {len(names)} columns, like the "
                    f"first. Received: {len(row)} at {path}, line "
                    f"{reader.line_num}"
                )
            yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: {error}. In .csv, values with "
            "commas, quotes or newlines must be in quotes, and their quotes "
            "doubled."
        ) from error
