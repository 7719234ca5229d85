"""Readers of untrusted JSON files, with limits on size and nesting."""

import json
import math
import pathlib
import re

from txl_keras import gfile
from txl_keras.checks import shown

# Parsed JSON takes up to 20 times its file size in memory.
MAX_BYTES = 1 << 20
MAX_VOCABULARY_BYTES = 16 << 20
# A list or a short string takes 64 bytes of memory for 3 bytes of a file, so
# their number is limited to this value plus one per 16 bytes of the file.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_MAX_ITEMS = 1 << 20
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
    """Reads a JSON file, local or remote, that holds one object or list."""
    with open_checked(path, max_bytes) as file:
        data = file.read()
    return parse_json(data, path, kind)


def open_checked(path, max_bytes):
    """Opens a file to read bytes; raises if it is missing or too large."""
    path = str(path)
    if not gfile.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    if gfile.isdir(path):
        raise FileNotFoundError(f"{path} must be a file. Received: a folder")
    # Opening a named pipe would block. Only local paths can be pipes.
    if "://" not in path and not pathlib.Path(path).is_file():
        raise ValueError(
            f"{path} must be a file. Received: a pipe, socket or device"
        )
    size = gfile.stat(path).length
    if size > max_bytes:
        raise ValueError(
            f"{path} must have at most {max_bytes:,} bytes to be read. "
            f"Received: a file of {size:,} bytes"
        )
    return gfile.GFile(path, "rb")


def _num_items(text):
    return sum(map(text.count, ",[{"))


def parse_json(text, source, kind=dict):
    """Parses JSON text (a string, or UTF-8 bytes) of one object or list."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        max_items = _MAX_ITEMS + len(text) // 16
        # Commas and brackets in strings create no objects.
        if _num_items(text) > max_items < _num_items(_STRING.sub("", text)):
            raise ValueError(
                f"it has more than {max_items:,} commas and opening brackets"
            )
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if is_deep else shown(str(error))
        raise ValueError(
            f"{source} is not a JSON file that can be read; it is damaged or "
            f"of another format: {reason}"
        ) from (None if is_deep else error)
    if not isinstance(content, kind):
        name = {dict: "object", list: "list"}.get(kind, "object or list")
        raise ValueError(
            f"{source} must hold a JSON {name}. Received: {shown(content)}"
        )
    return content


def check_fields(content, fields, source):
    """Checks the types of the fields of a JSON object."""
    # `fields` maps the path of a field to its allowed types, such as `{"model":
    # "an object", "model.name": "a string or null"}`. An absent field counts as
    # null; numbers must be finite, and integers have at most 64 bits.
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


def check_known(content, known, source):
    """Raises `ValueError` if a JSON object has an unknown key."""
    unknown = sorted(content.keys() - known)
    if unknown:
        raise ValueError(f"{source} has the unknown key {shown(unknown[0])}")


def _is_kind(value, kind):
    is_boolean = isinstance(value, bool) and kind != "a boolean"
    if is_boolean or not isinstance(value, _KINDS[kind]):
        return False
    if isinstance(value, int):
        # A larger integer makes no sense as a size and overflows in TensorFlow.
        return abs(value) < 1 << 63
    return kind != "a number" or math.isfinite(value)
