"""WikiText-103: 28,475 good and featured Wikipedia articles, in words."""

import itertools

from txl_keras.data.corpora.published_files import read_lines
from txl_keras.data.corpora.tfds_builder import TextBuilder


class Wikitext103Corpus(TextBuilder):
    """Loads good and featured Wikipedia articles, in words, as documents."""

    URLS = (
        # The authors' URL, which no longer works (as of 2026).
        "https://s3.amazonaws.com/research.metamind.io/wikitext/"
        "wikitext-103-v1.zip",
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
    )
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "wikitext-103-v1.zip, a folder wikitext-103, or the wiki.*.tokens"
    )
    MEMBERS = {
        "train": "wikitext-103/wiki.train.tokens",
        "valid": "wikitext-103/wiki.valid.tokens",
        "test": "wikitext-103/wiki.test.tokens",
    }
    ONE_DOCUMENT = False
    # The digest in Julia's CorpusLoaders.jl. (torchtext: MD5 9ddaacaf...)
    ARCHIVE_DIGEST = (
        "sha256",
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    )
    # From table 1 of the paper, https://arxiv.org/abs/1609.07843.
    TOKENS = {"train": 103_227_021, "valid": 217_646, "test": 245_569}

    def records(self, source, split):
        return split_articles(read_lines(source))


def split_articles(lines):
    """Yields the articles of an iterable of lines, all as `bytes`."""
    # A title is a line ` = Title = ` between blank lines; section titles look
    # like ` = = Section = = `.
    article, titled, before = [], False, b""
    for line, after in itertools.pairwise(itertools.chain(lines, [b""])):
        if _is_title(line) and not before.strip() and not after.strip():
            if titled:
                yield b"".join(article)
                article = []
            titled = True
        article.append(line)
        before = line
    yield b"".join(article)


def _is_title(line):
    words = line.split()
    # A formula may begin with `=`, but does not also end with it.
    return len(words) > 2 and words[0] == words[-1] == b"=" and words[1] != b"="
