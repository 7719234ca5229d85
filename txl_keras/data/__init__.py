"""Data pipeline: turns text into segments of int32 token ids.

It does not depend on any model. Letters: `B` is the batch size, `T` the tokens
of a segment, `V` the vocabulary size.

```python
from txl_keras.data import Segments, build_tokenizer, load_corpus, prepare

corpus = load_corpus("python_stdlib")
tokenizer = build_tokenizer("bytes", corpus)
splits = prepare(corpus, tokenizer, folder="ids")
tokens = splits["train"].tokens  # [n] uint8, on disk
segments = Segments(tokens, batch_size=16, segment_length=64,
                    drop_remainder=True)
segments.batch(0)["inputs"]  # [B, T] int32
```
"""

from typing import TYPE_CHECKING

from txl_keras.lazy import on_first_use

if TYPE_CHECKING:
    # Corpora: text in three splits.
    from txl_keras.data.corpora.corpus import Corpus
    from txl_keras.data.corpora.loading import load_corpus

    # Labelled texts for classification.
    from txl_keras.data.labelled_texts import LabelledTexts
    from txl_keras.data.labelled_texts import read_labelled_texts

    # Batches for permutation language modelling (XLNet).
    from txl_keras.data.permutation import PermutedSegments

    # Encodes a corpus once and stores the ids on disk.
    from txl_keras.data.preparation import PreparedSplit
    from txl_keras.data.preparation import prepare
    from txl_keras.data.preparation import prepare_tokenizer

    # Cuts a token stream into batches of segments.
    from txl_keras.data.segments import Segments
    from txl_keras.data.sliding_windows import SlidingWindows

    # Batches labelled texts of similar length.
    from txl_keras.data.text_batches import TextBatches
    from txl_keras.data.text_batches import pad_texts

    # Tokenizers: text to ids and back.
    from txl_keras.data.tokenizers.building import build_tokenizer
    from txl_keras.data.tokenizers.character_tokenizer import ByteTokenizer
    from txl_keras.data.tokenizers.character_tokenizer import CharacterTokenizer
    from txl_keras.data.tokenizers.id_tokenizer import IdTokenizer
    from txl_keras.data.tokenizers.library_tokenizers import (
        HuggingFaceTokenizer,
    )
    from txl_keras.data.tokenizers.library_tokenizers import KerasHubTokenizer
    from txl_keras.data.tokenizers.saving import load_tokenizer
    from txl_keras.data.tokenizers.saving import save_tokenizer
    from txl_keras.data.tokenizers.sentence_piece_tokenizer import (
        SentencePieceTokenizer,
    )
    from txl_keras.data.tokenizers.tokenizer import Tokenizer
    from txl_keras.data.tokenizers.word_tokenizer import WordTokenizer
    from txl_keras.data.vocabulary import Vocabulary
    from txl_keras.data.vocabulary import choose_cutoffs

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "Corpus",
    "HuggingFaceTokenizer",
    "IdTokenizer",
    "KerasHubTokenizer",
    "LabelledTexts",
    "PermutedSegments",
    "PreparedSplit",
    "Segments",
    "SentencePieceTokenizer",
    "SlidingWindows",
    "TextBatches",
    "Tokenizer",
    "Vocabulary",
    "WordTokenizer",
    "build_tokenizer",
    "choose_cutoffs",
    "load_corpus",
    "load_tokenizer",
    "pad_texts",
    "prepare",
    "prepare_tokenizer",
    "read_labelled_texts",
    "save_tokenizer",
]

__getattr__, __dir__ = on_first_use(__name__)
