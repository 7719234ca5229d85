"""Tokenizers: text to integer ids and back.

- `ByteTokenizer`: one id per byte. Encodes any text without a vocabulary.
- `CharacterTokenizer`: one id per symbol that occurs in a corpus.
- `WordTokenizer`: one id per whitespace-separated word, as in the published
  results on WikiText-103 and One Billion Word.
- `SentencePieceTokenizer`: one id per subword, learned from a text. Needs
  TensorFlow Text, an optional dependency.
- `HuggingFaceTokenizer`: the `tokenizer.json` of Hugging Face's tokenizers, and
  `KerasHubTokenizer`, for those of KerasHub.
- `IdTokenizer`: for data that is token ids already, such as music events.

All accept `bytes`, as a `Corpus` yields them, and `str`. `Tokenizer` is their
base class, also for a tokenizer of your own. Import them from `txl_keras.data`.

With `drop_newlines`, newline characters are not tokens. The published enwik8
results use this protocol, which leaves 204 symbols instead of 205. Bits per
character then refer to the text without newlines: compare them with results of
the same protocol only, and report both where possible.
"""
