"""text8: 100,000,000 bytes of Wikipedia, reduced to a-z and space."""

import string

from txl_keras.data.corpora.enwik8 import Enwik8Corpus
from txl_keras.data.corpora.published_files import read_chunks

ALPHABET = (string.ascii_lowercase + " ").encode()


class Text8Corpus(Enwik8Corpus):
    """Loads 100,000,000 bytes of Wikipedia, reduced to a-z and space.

    Has the published splits: 90M, 5M and 5M bytes in order, each one document.
    A symbol is a byte.
    """

    URLS = ("http://mattmahoney.net/dc/text8.zip",)
    MANUAL_DOWNLOAD_INSTRUCTIONS = "text8.zip, text8.gz or text8"
    MEMBERS = {"train": "text8", "valid": "text8", "test": "text8"}
    # The digest that the `tensorsets` package and several others list.
    DIGEST = ("md5", "3bea1919949baf155f99411df5fada7e")

    def check(self, sources):
        for chunk in read_chunks(sources["train"]):
            unexpected = chunk.translate(None, delete=ALPHABET)
            if unexpected:
                raise self.mismatch_error(
                    sources["train"],
                    "only the letters a-z and space",
                    f"byte {unexpected[0]:#04x}",
                )
        super().check(sources)
