"""Penn Treebank as prepared by Mikolov for language models, in words."""

from txl_keras.data.corpora.published_files import read_chunks
from txl_keras.data.corpora.tfds_builder import TextBuilder


class PtbCorpus(TextBuilder):
    """Loads Penn Treebank as prepared by Mikolov, with 10,000 words.

    Each split is one document.
    """

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
    # The digest in PaddlePaddle, whose mirror is the second URL.
    ARCHIVE_DIGEST = ("md5", "30177ea32e27c525793142b6bf2c8e2d")
    # Published sizes, which count `<eos>` at the end of each line.
    TOKENS = {"train": 929_589, "valid": 73_760, "test": 82_430}

    def records(self, source, split):
        return read_chunks(source)
