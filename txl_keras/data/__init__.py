"""Data: text in, segments of int32 token ids out. Knows no model.

Letters: `B` rows of a batch, `T` tokens of a segment, `V` size of the
vocabulary.

```python
corpus = load_corpus("python_stdlib")
tokenizer = build_tokenizer("bytes", corpus)
tokens = tokenizer.encode(corpus.splits["train"])  # [n] uint8
segments = Segments(tokens, batch_size=16, segment_length=64,
                    drop_remainder=True)
segments.batch(0)["inputs"]  # [B, T] int32
```
"""

# Text in three splits.
from txl_keras.data.corpora import Corpus
from txl_keras.data.corpora import load_corpus

# Token stream to batches of segments.
from txl_keras.data.segments import Segments

# Text to ids and back.
from txl_keras.data.tokenizers import ByteTokenizer
from txl_keras.data.tokenizers import CharacterTokenizer
from txl_keras.data.tokenizers import WordTokenizer
from txl_keras.data.tokenizers import build_tokenizer
from txl_keras.data.tokenizers import load_tokenizer
from txl_keras.data.tokenizers import save_tokenizer
from txl_keras.data.vocabulary import Vocabulary
from txl_keras.data.vocabulary import WordVocabulary

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "Corpus",
    "Segments",
    "Vocabulary",
    "WordTokenizer",
    "WordVocabulary",
    "build_tokenizer",
    "load_corpus",
    "load_tokenizer",
    "save_tokenizer",
]
