"""Penn Treebank, as Mikolov prepared it for language models, in words."""

from txl_keras.data.corpora.tfds_builder import TextBuilder
from txl_keras.data.corpora.tfds_builder import load_corpus
from txl_keras.data.corpora.tfds_builder import read_chunks


class PtbCorpus(TextBuilder):
    """Penn Treebank, as Mikolov prepared it: 10,000 different words."""

    URLS = (
        "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz",
    )
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "simple-examples.tgz, a folder simple-examples, or the ptb.*.txt"
    )
    MEMBERS = {
        "train": "simple-examples/data/ptb.train.txt",
        "valid": "simple-examples/data/ptb.valid.txt",
        "test": "simple-examples/data/ptb.test.txt",
    }
    # As PaddlePaddle has it, whose mirror is the second address.
    ARCHIVE_DIGEST = ("md5", "30177ea32e27c525793142b6bf2c8e2d")
    # The sizes that papers give, with the `<eos>` that ends each line.
    TOKENS = {"train": 929_589, "valid": 73_760, "test": 82_430}

    def records(self, source, split):
        return read_chunks(source)


def load(data_dir=None, manual_dir=None):
    """Opens Penn Treebank, prepared in `data_dir`; the first time, prepares it.

    It is made from `simple-examples.tgz` in `manual_dir`, or from the
    `ptb.*.txt` in it, there or in the folder `simple-examples/data`, or
    downloaded. A split is one document.

    Args:
        data_dir: Optional string. The folder for what is prepared and
            downloaded. Default: `TFDS_DATA_DIR` or `~/tensorflow_datasets`.
        manual_dir: Optional string. The folder with files already there.
            Default: `data_dir`.

    Returns:
        A `Corpus`.

    Raises:
        ValueError: If the content is not Penn Treebank, or a folder is wrong.
        ConnectionError: If no file is there and it cannot be downloaded.
    """
    return load_corpus(PtbCorpus, data_dir, manual_dir)
