"""Recognizes what a file holds that is not text in UTF-8."""

import codecs

# Formats that are often taken for text, by their first bytes.
_FORMATS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"(\xb5/\xfd": "Zstandard",
    b"PK\3\4": "zip",
    b"7z\xbc\xaf": "7z",
    b"PAR1": "Parquet",
    b"%PDF-": "PDF",
    codecs.BOM_UTF32_LE: "UTF-32LE",  # begins like the next one
    codecs.BOM_UTF16_LE: "UTF-16LE",
    codecs.BOM_UTF32_BE: "UTF-32BE",
    codecs.BOM_UTF16_BE: "UTF-16BE",
}
_REMEDIES = {
    "gzip": "let its name end in .gz, or unpack it with `gunzip`",
    "bzip2": "unpack it with `bunzip2`",
    "xz": "unpack it with `unxz`",
    "Zstandard": "unpack it with `unzstd`",
    "zip": "unpack it with `unzip`, or save the document as plain text",
    "7z": "unpack it with `7z x`",
    "tar": "unpack it with `tar -xf`",
    "Parquet": "write it as .jsonl, for example with `pandas.read_parquet(OLD)."
    "to_json(NEW, orient='records', lines=True)`",
    "PDF": "take the text out with `pdftotext`",
}
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\f\r\x1b"})


def advice_for(head, byte):
    """Returns what to do about a byte of a file that begins with `head`."""
    # As latin1, an archive would become text to train on.
    kind = _format(head) or _encoding(head)
    if kind:
        remedy = f"convert it with `iconv -f {kind} -t UTF-8 OLD > NEW`"
        return f"It looks like {kind}: {_REMEDIES.get(kind, remedy)}."
    num_controls = len(head) - len(head.translate(None, _CONTROLS))
    if num_controls > len(head) / 50:
        return "It does not look like text: remove it."
    if byte:
        remedy = "convert it, for example with `iconv -f latin1 -t utf-8"
    else:
        remedy = r"remove its zero bytes with `tr -d '\0' <"
    return f"Remove the file if it is not text, or {remedy} OLD > NEW`."


def _format(head):
    if head[257:262] == b"ustar":
        return "tar"
    marks = (mark for mark in _FORMATS if head.startswith(mark))
    return _FORMATS.get(next(marks, None))


def _encoding(head):
    """Returns UTF-16 or UTF-32, if that makes text with zeros readable."""
    if head.count(0) < len(head) / 200:
        return None  # read as UTF-16, any text would be Chinese
    # The high bytes of a text's characters vary less than the low ones.
    is_big_endian = len({*head[::2]}) < len({*head[1::2]})
    utf16 = "UTF-16BE" if is_big_endian else "UTF-16LE"
    for encoding in ("UTF-32LE", "UTF-32BE", utf16):
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head)
        except UnicodeDecodeError:
            continue
        num_shown = sum(c.isprintable() or c.isspace() for c in text)
        if num_shown > 0.95 * len(text):
            return encoding
    return None
