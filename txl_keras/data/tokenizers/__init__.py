"""Tokenizers: text to integer ids and back.

- `ByteTokenizer`: the id is the byte. Needs no vocabulary, knows every text.
- `CharacterTokenizer`: the ids are those of the symbols a corpus consists of.
- `WordTokenizer`: the ids are those of words between spaces, as in the
  published results on WikiText-103 and One Billion Word.
- `SentencePieceTokenizer`, `WordPieceTokenizer`: the ids are those of parts of
  words, learned from a text. They need TensorFlow Text, an extra.

All read `bytes`, as a `Corpus` holds them, and `str`, as people type it.

With `drop_newlines` the newline characters of a text are no tokens. This is the
protocol of the published enwik8 results, which then have 204 symbols and not
205. Bits per character are over the text without its newlines: compare them
with numbers of the same protocol, and give both where you can.
"""

from txl_keras.data.tokenizers.building import build_tokenizer
from txl_keras.data.tokenizers.building import load_tokenizer
from txl_keras.data.tokenizers.building import save_tokenizer
from txl_keras.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_keras.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_keras.data.tokenizers.character_tokenizer import count_symbols
from txl_keras.data.tokenizers.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
)
from txl_keras.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_keras.data.tokenizers.word_tokenizer import WordTokenizer
from txl_keras.data.tokenizers.word_tokenizer import count_words

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "SentencePieceTokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "build_tokenizer",
    "count_symbols",
    "count_words",
    "load_tokenizer",
    "save_tokenizer",
]
