"""Tokenizers: text to integer ids and back.

- `ByteTokenizer`: one id per byte. Encodes any text without a vocabulary.
- `CharacterTokenizer`: one id per symbol that occurs in a corpus.
- `WordTokenizer`: one id per whitespace-separated word, as in the published
  results on WikiText-103 and One Billion Word.
- `SentencePieceTokenizer`: one id per subword, learned from a text, and
  `WordPieceTokenizer`, for the vocabularies of BERT. Both need TensorFlow Text,
  an optional dependency.
- `HuggingFaceTokenizer`: the `tokenizer.json` of Hugging Face's tokenizers, and
  `KerasHubTokenizer`, for those of KerasHub.
- `IdTokenizer`: for data that is token ids already, such as music events.

All accept `bytes`, as a `Corpus` yields them, and `str`. `Tokenizer` is their
base class, also for a tokenizer of your own.

With `drop_newlines`, newline characters are not tokens. The published enwik8
results use this protocol, which leaves 204 symbols instead of 205. Bits per
character then refer to the text without newlines: compare them with results of
the same protocol only, and report both where possible.
"""

from txl_keras.data.tokenizers.building import build_tokenizer
from txl_keras.data.tokenizers.building import load_tokenizer
from txl_keras.data.tokenizers.building import save_tokenizer
from txl_keras.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_keras.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_keras.data.tokenizers.character_tokenizer import count_symbols
from txl_keras.data.tokenizers.id_tokenizer import IdTokenizer
from txl_keras.data.tokenizers.library_tokenizers import HuggingFaceTokenizer
from txl_keras.data.tokenizers.library_tokenizers import KerasHubTokenizer
from txl_keras.data.tokenizers.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
)
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_keras.data.tokenizers.word_tokenizer import WordTokenizer
from txl_keras.data.tokenizers.word_tokenizer import count_words

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "HuggingFaceTokenizer",
    "IdTokenizer",
    "KerasHubTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "build_tokenizer",
    "count_symbols",
    "count_words",
    "load_tokenizer",
    "save_tokenizer",
]
