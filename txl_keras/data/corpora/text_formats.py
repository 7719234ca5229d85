"""Recognizes what a file holds that is not text in UTF-8."""

import codecs

# Formats that are often taken for text, by their first bytes.
_FORMATS = {
    b"\x1f\x8b": "gzip: let its name end in .gz, or unpack it with `gunzip`",
    b"BZh": "bzip2: unpack it with `bunzip2`",
    b"\xfd7zXZ\0": "xz: unpack it with `unxz`",
    b"(\xb5/\xfd": "Zstandard: unpack it with `unzstd`",
    b"PK\3\4": "zip: unpack it with `unzip`, or save it as plain text",
    b"7z\xbc\xaf": "7z: unpack it with `7z x`",
    b"PAR1": "Parquet: write it as .jsonl, for example with "
    "`pandas.read_parquet(OLD).to_json(NEW, orient='records', lines=True)`",
    b"%PDF-": "PDF: take the text out with `pdftotext`",
}
# The mark of UTF-32 begins with that of UTF-16, so it comes first.
_FORMATS |= {
    mark: f"{name}: convert it with `iconv -f {name} -t UTF-8 OLD > NEW`"
    for mark, name in (
        (codecs.BOM_UTF32_LE, "UTF-32LE"),
        (codecs.BOM_UTF32_BE, "UTF-32BE"),
        (codecs.BOM_UTF16_LE, "UTF-16LE"),
        (codecs.BOM_UTF16_BE, "UTF-16BE"),
    )
}
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\f\r\x1b"})


def advice_for(head, byte):
    """Returns what to do about a byte of a file that begins with `head`."""
    # As latin1, an archive would become text to train on.
    kinds = [_FORMATS[mark] for mark in _FORMATS if head.startswith(mark)]
    if head[257:262] == b"ustar":
        kinds = ["tar: unpack it with `tar -xf`"]
    if kinds:
        return f"It looks like {kinds[0]}."
    num_controls = len(head) - len(head.translate(None, _CONTROLS))
    if num_controls > len(head) / 50:
        return (
            "It does not look like text: remove it, or if it is UTF-16, "
            "convert it with `iconv -f UTF-16LE -t UTF-8 OLD > NEW`."
        )
    if byte:
        remedy = "convert it, for example with `iconv -f latin1 -t utf-8"
    else:
        remedy = r"remove its zero bytes with `tr -d '\0' <"
    return f"Remove the file if it is not text, or {remedy} OLD > NEW`."
