import functools
import json

import numpy as np
import pytest

from txl_keras.data import Corpus
from txl_keras.data import HuggingFaceTokenizer
from txl_keras.data import KerasHubTokenizer
from txl_keras.data import build_tokenizer
from txl_keras.data import load_tokenizer
from txl_keras.data import prepare
from txl_keras.data import save_tokenizer
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.generation.text_stream import TextStream
from txl_keras.serving.graph_tokenizers import GraphTokenizer

TEXT = "The naïve cat 😀  sat\n\n on the mat. 12345 don't\n" * 9
ODD = "The ☃ cat\r\n\t\0 ▁Ġ \u2028<|end|>  漢\n\n the  mat "


@functools.cache
def train(name):
    """The tokenizer.json of a small tokenizer."""
    hf = pytest.importorskip("tokenizers")
    end, options = "<|end|>", {"show_progress": False, "vocab_size": 300}
    if name == "byte level":
        tokenizer = hf.Tokenizer(hf.models.BPE(dropout=0.5))
        level = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = level
        tokenizer.decoder = hf.decoders.ByteLevel()
        trainer = hf.trainers.BpeTrainer(
            initial_alphabet=level.alphabet(), special_tokens=[end], **options
        )
    elif name == "metaspace":
        tokenizer = hf.Tokenizer(hf.models.Unigram())
        tokenizer.pre_tokenizer = hf.pre_tokenizers.Metaspace()
        tokenizer.decoder = hf.decoders.Metaspace()
        trainer = hf.trainers.UnigramTrainer(
            special_tokens=["<unk>"], unk_token="<unk>", **options
        )
    elif name == "byte fallback":
        tokenizer = hf.Tokenizer(hf.models.BPE(byte_fallback=True))
        replace = hf.normalizers.Replace(" ", "▁")
        prepend = hf.normalizers.Prepend("▁")
        tokenizer.normalizer = hf.normalizers.Sequence([prepend, replace])
        tokenizer.decoder = hf.decoders.Sequence(
            [
                *(hf.decoders.Replace("▁", " "), hf.decoders.ByteFallback()),
                *(hf.decoders.Fuse(), hf.decoders.Strip(" ", 1, 0)),
            ]
        )
        single = [f"<0x{i:02X}>" for i in range(256)]
        options["vocab_size"] = 330
        trainer = hf.trainers.BpeTrainer(special_tokens=single, **options)
    else:
        tokenizer = hf.Tokenizer(hf.models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = hf.normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = hf.decoders.WordPiece()
        trainer = hf.trainers.WordPieceTrainer(
            special_tokens=["[UNK]"], **options
        )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer.to_str()


every_kind = pytest.mark.parametrize(
    "name", ["byte level", "metaspace", "byte fallback", "word piece"]
)


def check_bytes(tokenizer, ids):
    """The bytes of parts are the parts of the bytes, for `TextStream`."""
    whole = tokenizer.decode_bytes(ids)
    assert b"".join(map(tokenizer.decode_bytes, ids)) == whole
    stream = TextStream(tokenizer.decode_bytes)
    text = "".join(map(stream.add, ids)) + stream.finish()
    assert text == whole.decode()
    return whole


@every_kind
def test_ids_are_those_of_the_library(name):
    library = pytest.importorskip("tokenizers").Tokenizer.from_str(train(name))
    library.enable_truncation(3)
    library.enable_padding(length=99)
    tokenizer = HuggingFaceTokenizer(library.to_str())
    library.no_truncation()
    library.no_padding()
    if name == "byte level":
        library.model.dropout = None
    for text in (TEXT, ODD, "", "a"):
        expected = library.encode(text, add_special_tokens=False)
        ids = tokenizer.encode(text)
        assert ids.tolist() == tokenizer.encode(text.encode()).tolist()
        assert ids.tolist() == expected.ids
        assert tokenizer.decode(ids) == library.decode(
            expected.ids, skip_special_tokens=False
        )
        check_bytes(tokenizer, ids)
    assert tokenizer.vocabulary_size == library.get_vocab_size()
    if name == "word piece":
        assert tokenizer.unknown_id == tokenizer.encode("☃")[0] == 0
    with pytest.raises(ValueError, match="0xff at position 1"):
        tokenizer.encode(b"a\xff")
    with pytest.raises(ValueError, match="`ids` must"):
        tokenizer.decode_bytes([9999])


@every_kind
def test_byte_level_tokenizers_lose_nothing(name):
    tokenizer = HuggingFaceTokenizer(train(name))
    is_byte_level = name == "byte level"
    assert tokenizer.is_lossless == is_byte_level
    whole = check_bytes(tokenizer, tokenizer.encode(ODD))
    assert (whole.decode() == ODD) == is_byte_level
    if name == "byte fallback":  # a prefix, as for words
        assert whole.decode() == " " + ODD.replace("▁", " ")
    every = np.arange(tokenizer.vocabulary_size)
    data = b"".join(map(tokenizer.decode_bytes, every))
    assert data == tokenizer.decode_bytes(every)


def test_some_changes_of_a_byte_level_tokenizer_are_lossy():
    for change in (
        lambda content: content.update(normalizer={"type": "Lowercase"}),
        lambda content: content["pre_tokenizer"].update(add_prefix_space=True),
        lambda content: content["added_tokens"][0].update(lstrip=True),
    ):
        content = json.loads(train("byte level"))
        change(content)
        assert not HuggingFaceTokenizer(json.dumps(content)).is_lossless


@pytest.mark.parametrize("model", ["WordPiece", "WordLevel", "BPE"])
def test_bytes_without_the_pieces_of_byte_pair_encoding_are_lossy(model):
    hf = pytest.importorskip("tokenizers")
    symbols = hf.pre_tokenizers.ByteLevel.alphabet()
    ids = {x: i for i, x in enumerate(["?", *sorted(symbols), "##s"])}
    build = getattr(hf.models, model)
    if model == "BPE":
        options = {"continuing_subword_prefix": "##"}
        tokenizer = hf.Tokenizer(build(ids, [], **options))
    else:
        tokenizer = hf.Tokenizer(build(ids, unk_token="?"))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(False)
    tokenizer.decoder = hf.decoders.ByteLevel()
    tokenizer = HuggingFaceTokenizer(tokenizer.to_str())
    assert tokenizer.decode(tokenizer.encode("cats")) != "cats"
    assert not tokenizer.is_lossless


@pytest.mark.parametrize("name", ["byte level", "metaspace", "byte fallback"])
def test_a_text_that_goes_on_gets_no_space(name):
    tokenizer = HuggingFaceTokenizer(train(name))
    for first, second in (("The ca", "t sat"), ("The", " cat")):
        ids = [*tokenizer.encode(first), *tokenizer.encode(second, False)]
        assert tokenizer.decode(ids) == first + second


def test_it_is_saved_with_the_model_and_prepares_a_corpus(tmp_path):
    path = tmp_path / "of_hugging_face.json"
    path.write_text(train("byte level"), encoding="utf-8")
    corpus = Corpus("c", {"train": TEXT.encode(), "valid": b"a", "test": b"b"})
    tokenizer = build_tokenizer("hugging_face", corpus, vocabulary=path)
    saved = tmp_path / "tokenizer.json"
    save_tokenizer(tokenizer, saved)
    loaded = load_tokenizer(saved)
    assert loaded.get_config() == tokenizer.get_config()
    train_split = prepare(corpus, loaded, str(tmp_path / "ids"))["train"]
    assert loaded.decode(train_split.tokens) == TEXT
    with pytest.raises(ValueError, match="encode_in_graph.*HuggingFace"):
        GraphTokenizer(tokenizer)


def test_what_cannot_be_read_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    bpe = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    ctc = {"pad_token": "a", "word_delimiter_token": "b", "cleanup": True}
    path = tmp_path / "tokenizer.json"
    for content, message in (
        ("{}", "from_file.*Model missing"),
        ("tokenizer.json", "from_file.*expected"),
        ('{"model":' * 9999, "from_file.*recursion"),
        ({"model": {**bpe, "vocab": {}}}, "ids"),
        ({"model": {**bpe, "vocab": {"a": 2**32 - 1}}}, "ids must be below"),
        ({"model": bpe, "decoder": {"type": "CTC", **ctc}}, "CTC"),
    ):
        if isinstance(content, dict):
            content = json.dumps(content)
        with pytest.raises(ValueError, match=message) as error:
            HuggingFaceTokenizer(content)
        path.write_text(content)
        with pytest.raises(ValueError, match=f"{path}: .*{message}"):
            HuggingFaceTokenizer.from_file(path)
        assert len(str(error.value)) < 500


class Letters:
    """A tokenizer as in KerasHub."""

    sequence_length = None
    letters = ("[UNK]", "▁the", "▁cat", "s", "<0xC3>", "<0xA9>")

    def vocabulary_size(self):
        return len(self.letters)

    def id_to_token(self, id):
        return self.letters[id]

    def tokenize(self, text):
        words = text.replace(" ", " ▁").replace("s", " s").split()
        words[0] = f"▁{words[0]}"
        return [max(0, (*self.letters, word).index(word)) % 6 for word in words]

    def detokenize(self, ids):
        text = "".join(self.letters[i] for i in ids)
        return text.replace("▁", " ").removeprefix(" ")


def test_a_tokenizer_of_keras_hub_reads_text_and_is_not_saved(tmp_path):
    tokenizer = KerasHubTokenizer(Letters())
    assert tokenizer.vocabulary_size == 6
    ids = tokenizer.encode(b"the cats dog")
    assert ids.tolist() == [1, 2, 3, 0] and ids.dtype == np.uint8
    assert check_bytes(tokenizer, ids) == b" the cats[UNK]"
    assert tokenizer.decode(ids) == "the cats[UNK]"
    assert tokenizer.decode([1, 4, 5]) == "theé"
    model = TransformerXLCausalLM.from_preset(
        "quickstart", num_layers=1, tokenizer=tokenizer, vocabulary_size=6
    )
    with pytest.raises(ValueError, match="cannot be saved.*SentencePieceTok"):
        model.save_to_preset(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"`KerasHubTokenizer\(tokenizer\)`"):
        model.tokenizer = Letters()


def test_keras_hub_tokenizers_that_do_not_fit_are_refused():
    padding = Letters()
    padding.sequence_length = 7
    with pytest.raises(ValueError, match="`sequence_length`.*length=7"):
        KerasHubTokenizer(padding)
    with pytest.raises(ValueError, match="must have the methods.*'bytes'"):
        KerasHubTokenizer("bytes")


def test_byte_level_tokenizers_of_keras_hub_have_bytes():
    hub = Letters()
    hub.letters, hub.merges = ("Ġ", "Ã", "©", "<|end|>"), []
    hub.unsplittable_tokens = ["<|end|>"]
    assert KerasHubTokenizer(hub).decode([0, 1, 2, 3]) == " é<|end|>"
