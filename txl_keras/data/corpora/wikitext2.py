"""WikiText-2: 600 good and featured Wikipedia articles, in words."""

from txl_keras.data.corpora.wikitext103 import Wikitext103Corpus


class Wikitext2Corpus(Wikitext103Corpus):
    """Loads 600 good and featured Wikipedia articles, in words."""

    URLS = (
        # The authors' URL, which no longer works (as of 2026).
        "https://s3.amazonaws.com/research.metamind.io/wikitext/"
        "wikitext-2-v1.zip",
        "https://wikitext.smerity.com/wikitext-2-v1.zip",
    )
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "wikitext-2-v1.zip, a folder wikitext-2, or the wiki.*.tokens"
    )
    MEMBERS = {
        "train": "wikitext-2/wiki.train.tokens",
        "valid": "wikitext-2/wiki.valid.tokens",
        "test": "wikitext-2/wiki.test.tokens",
    }
    # The digest in Julia's CorpusLoaders.jl. (torchtext: MD5 542ccefa...)
    ARCHIVE_DIGEST = (
        "sha256",
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    )
    # From table 1 of the paper, https://arxiv.org/abs/1609.07843.
    TOKENS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
