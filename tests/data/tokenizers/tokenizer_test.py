"""The protocol of tokenizers, for those of users."""

import numpy as np

from txl_keras.data import Corpus
from txl_keras.data import prepare
from txl_keras.data.tokenizers import Tokenizer
from txl_keras.data.tokenizers import WordTokenizer


class LineTokenizer(Tokenizer):
    """Encodes a line as the number of its bytes."""

    vocabulary_size = 9

    def encode(self, text, begins_line=True):
        return np.array([len(line) for line in text.splitlines()], np.uint8)

    def decode_bytes(self, ids):
        return b"".join(b"-" * i + b"\n" for i in ids)


def test_two_methods_make_a_tokenizer(tmp_path):
    tokenizer = LineTokenizer.from_config(LineTokenizer().get_config())
    corpus = Corpus("c", {"train": b"ab\nc\n", "valid": b"d", "test": b"\n"})
    splits = prepare(corpus, tokenizer, str(tmp_path))
    assert splits["train"].tokens.tolist() == [2, 1]
    assert splits["train"].metadata["num_unknown"] == 0
    assert tokenizer.decode([2, 1]) == "--\n-\n"


def test_a_newline_of_two_tokens_has_no_id():
    words = ["<s>", "</s>", "a"]
    assert WordTokenizer(words, line_end="</s>").newline_id == 1
    tokenizer = WordTokenizer(words, line_start="<s>", line_end="</s>")
    assert tokenizer.newline_id is None
    assert tokenizer.unknown_id is None
