"""JSON from files that a stranger may have written."""

import json
import math
import pathlib
import re

import tensorflow as tf

from txl_keras.checks import shown

# Parsed JSON takes up to twenty times its size in memory.
MAX_BYTES = 1 << 20
MAX_VOCABULARY_BYTES = 16 << 20
# A vocabulary of strings has a handful of lists; a list takes 64 bytes of
# memory for the 3 bytes that it takes in a file. So does a short string: there
# may be so many, and one more per 16 bytes.
_MAX_CONTAINERS = 1 << 17
_MAX_ITEMS = 1 << 20
# Takes each character once, whatever is damaged: no step is taken back, and a
# string that does not end is one.
_STRING = re.compile(r'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_KINDS = {
    "an object": dict,
    "a list": list,
    "a string": str,
    "a boolean": bool,
    "an integer": int,
    "a number": (int, float),
    "null": type(None),
}


def read_json(path, kind=dict, max_bytes=MAX_BYTES):
    """Reads a JSON file that holds one object or list.

    Args:
        path: String or path, local or remote.
        kind: `dict`, `list` or a tuple of both, what the file must hold.
        max_bytes: Integer, the largest file that is read.

    Returns:
        An instance of `kind`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is larger, is no JSON, is nested too deeply or
            holds something else. The message names the file.
    """
    with open_checked(path, max_bytes) as file:
        data = file.read()
    return parse_json(data, path, kind)


def open_checked(path, max_bytes):
    """Opens a file for reading bytes, unless it is missing or too large."""
    path = str(path)
    # A pipe, which only this machine can have, would be waited for.
    is_local = "://" not in path
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise FileNotFoundError(f"There is no file {path}.")
    if is_local and not pathlib.Path(path).is_file():
        raise ValueError(
            f"{path} must be a file. Received: a pipe, socket or device"
        )
    size = tf.io.gfile.stat(path).length
    if size > max_bytes:
        raise ValueError(
            f"{path} must have at most {max_bytes:,} bytes to be read. "
            f"Received: a file of {size:,} bytes"
        )
    return tf.io.gfile.GFile(path, "rb")


def parse_json(text, source, kind=dict):
    """Parses JSON text that holds one object or list.

    Args:
        text: String, or bytes of UTF-8.
        source: String or path that errors name.
        kind: `dict`, `list` or a tuple of both, what the text must hold.

    Returns:
        An instance of `kind`.

    Raises:
        ValueError: If it is no JSON, nested too deeply or something else.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        if _count_brackets(text) > _MAX_CONTAINERS:
            raise ValueError(
                f"it has more than {_MAX_CONTAINERS:,} opening brackets"
            )
        max_items = _MAX_ITEMS + len(text) // 16
        if text.count(",") > max_items:
            raise ValueError(f"it has more than {max_items:,} commas")
        content = json.loads(text)
    except RecursionError:
        raise ValueError(
            f"{source} is not a JSON file that can be read: it is nested too "
            "deeply"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{source} is not a JSON file that can be read; it is damaged or "
            f"of another format: {shown(str(error))}"
        ) from error
    if not isinstance(content, kind):
        name = {dict: "object", list: "list"}.get(kind, "object or list")
        raise ValueError(
            f"{source} must hold a JSON {name}. Received: {shown(content)}"
        )
    return content


def _count_brackets(text):
    """Counts opening brackets, without those in strings if they are many."""
    number = text.count("[") + text.count("{")
    if number <= _MAX_CONTAINERS:
        return number
    text = _STRING.sub("", text)
    return text.count("[") + text.count("{")


def check_fields(content, fields, source):
    """Checks the types of the fields of a JSON object.

    Args:
        content: Dictionary.
        fields: Dictionary from the path of a field to the types that it may
            have, such as `{"model": "an object", "model.name": "a string or
            null"}`. A field that is absent counts as null. Numbers are finite.
        source: String or path that errors name.

    Raises:
        ValueError: If a field has another type.
    """
    for path, kinds in fields.items():
        value = content
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not any(_is_kind(value, kind) for kind in kinds.split(" or ")):
            received = "null, or no such field"
            if value is not None:
                received = shown(value)
            raise ValueError(
                f"{source} is damaged: its field `{path}` must be {kinds}. "
                f"Received: {received}"
            )


def _is_kind(value, kind):
    is_boolean = isinstance(value, bool) and kind != "a boolean"
    if is_boolean or not isinstance(value, _KINDS[kind]):
        return False
    return kind != "a number" or math.isfinite(value)
