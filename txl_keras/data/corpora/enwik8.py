"""enwik8: the first 100,000,000 bytes of an English Wikipedia dump of 2006."""

import hashlib

from txl_keras.data.corpora.published_files import read_chunks
from txl_keras.data.corpora.tfds_builder import TextBuilder

LENGTH = 100_000_000
HELD_OUT = 5_000_000  # bytes in each of valid and test


class Enwik8Corpus(TextBuilder):
    """Loads 100,000,000 bytes from the start of a Wikipedia dump of 2006.

    Has the published splits: 90M, 5M and 5M bytes in order, each one document.
    A symbol is a byte. Published results also drop the newlines: see
    `drop_newlines` of `txl_keras.data.CharacterTokenizer`.
    """

    URLS = ("http://mattmahoney.net/dc/enwik8.zip",)
    MANUAL_DOWNLOAD_INSTRUCTIONS = "enwik8.zip, enwik8.gz or enwik8"
    MEMBERS = {"train": "enwik8", "valid": "enwik8", "test": "enwik8"}
    ENCODING = "latin-1"
    DIGEST = (
        "sha256",
        "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    )

    def check(self, sources):
        algorithm, expected = self.DIGEST
        source, length = sources["train"], 0
        digest = hashlib.new(algorithm)
        for chunk in read_chunks(source):
            length += len(chunk)
            digest.update(chunk)
        if length != LENGTH:
            raise self.mismatch_error(
                source, f"{LENGTH:,} bytes", f"{length:,} bytes"
            )
        if digest.hexdigest() != expected:
            raise self.mismatch_error(
                source,
                f"{algorithm} {expected}",
                f"{algorithm} {digest.hexdigest()}",
            )

    def records(self, source, split):
        bounds = {
            "train": (0, LENGTH - 2 * HELD_OUT),
            "valid": (LENGTH - 2 * HELD_OUT, LENGTH - HELD_OUT),
            "test": (LENGTH - HELD_OUT, LENGTH),
        }
        return read_chunks(source, *bounds[split])
