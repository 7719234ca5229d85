"""text8: 100,000,000 bytes of Wikipedia, reduced to a-z and space."""

import string

from txl_keras.data.corpora.enwik8 import Enwik8Corpus
from txl_keras.data.corpora.tfds_builder import load_corpus
from txl_keras.data.corpora.tfds_builder import read_chunks

ALPHABET = (string.ascii_lowercase + " ").encode()


class Text8Corpus(Enwik8Corpus):
    """100,000,000 bytes of Wikipedia, reduced to a-z and space."""

    URLS = ("http://mattmahoney.net/dc/text8.zip",)
    MANUAL_DOWNLOAD_INSTRUCTIONS = "text8.zip, text8.gz or text8"
    MEMBERS = {"train": "text8", "valid": "text8", "test": "text8"}
    # As the `tensorsets` package and several others have it.
    DIGEST = ("md5", "3bea1919949baf155f99411df5fada7e")

    def check(self, sources):
        for chunk in read_chunks(sources["train"]):
            foreign = chunk.translate(None, delete=ALPHABET)
            if foreign:
                raise self.refusal(
                    sources["train"],
                    "only the letters a-z and space",
                    f"byte {foreign[0]:#04x}",
                )
        super().check(sources)


def load(data_dir=None, manual_dir=None):
    """Opens text8, prepared in `data_dir`, and prepares it the first time.

    It is made from `text8`, `text8.gz` or `text8.zip` in `manual_dir`, or
    downloaded. The splits are the published ones: 90M, 5M and 5M bytes in
    order, each of them one document. A symbol is a byte.

    Args:
        data_dir: Optional string. The folder for what is prepared and
            downloaded. Default: `TFDS_DATA_DIR` or `~/tensorflow_datasets`.
        manual_dir: Optional string. The folder with files already there.
            Default: `data_dir`.

    Returns:
        A `Corpus`.

    Raises:
        ValueError: If the content is not text8, or if a folder is wrong.
        ConnectionError: If no file is there and it cannot be downloaded.
    """
    return load_corpus(Text8Corpus, data_dir, manual_dir)
