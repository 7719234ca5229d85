"""SentencePiece models that tests share."""

import functools
import io

import pytest

from txl_keras.data import SentencePieceTokenizer

TEXT = """The cat sat on the mat, and the other cat sat on the hat.
A naïve cat  -  two spaces, trailing ones too \n\n\tA tab began this line.
Was the cat on the mat, or was the mat on the cat? The hat was on the mat.
""" * (4)
NAMES = ("bpe", "like XLNet", "like Llama")


def train_foreign(**options):
    """A model as others train it: most leave `options` at their defaults."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")),
        model_writer=model,
        model_type="bpe",
        minloglevel=2,
        **{"vocab_size": 80, **options},
    )
    return model.getvalue()


@functools.cache
def build_subwords(name):
    """The tokenizer of one of `NAMES`."""
    pytest.importorskip("tensorflow_text")
    pytest.importorskip("sentencepiece")
    if name == "bpe":
        return SentencePieceTokenizer.train([TEXT], 295)
    if name == "like XLNet":
        model = train_foreign(control_symbols=["<eop>"])
        return SentencePieceTokenizer(model, line_end="<eop>")
    model = train_foreign(
        vocab_size=310,
        normalization_rule_name="identity",
        byte_fallback=True,
        remove_extra_whitespaces=False,
    )
    return SentencePieceTokenizer(model)
