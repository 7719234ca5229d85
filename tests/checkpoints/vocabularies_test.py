import collections
import copyreg
import gzip
import json
import pickle
import re
import sys
import time
import types

import numpy as np
import pytest
from stored_models import torch_legacy
from stored_models import zipped

from txl_keras.checkpoints.vocabularies import load_vocabulary
from txl_keras.data import WordTokenizer
from txl_keras.data import save_tokenizer

SYMBOLS = ["<eos>", "the", "né", "你", "<unk>"]
IDS = {symbol: i for i, symbol in enumerate(SYMBOLS)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vocabulary"


@pytest.fixture
def marker(tmp_path):
    """A file that only executed code makes."""
    return tmp_path / "marker"


def make(module, name, monkeypatch, **state):
    """Makes an object of a class that pickles know by this name."""
    made = type(name, (), {"__module__": module})
    parts = module.split(".")
    for i in range(len(parts)):
        package = types.ModuleType(".".join(parts[: i + 1]))
        setattr(package, name, made)
        monkeypatch.setitem(sys.modules, package.__name__, package)
    instance = made()
    vars(instance).update(state)
    return instance


def state():
    """What a tokenizer of Hugging Face or a Vocab consists of."""
    return {
        "counter": collections.Counter(SYMBOLS),
        "special": ["<eos>"],
        "min_freq": 0,
        "max_size": None,
        "lower_case": False,
        "delimiter": None,
        "vocab_file": None,
        "never_split": {"<eos>", "<unk>"},
        "pattern": re.compile(r"\d"),
        "idx2sym": SYMBOLS,
        "sym2idx": collections.OrderedDict(IDS),
        "eos_idx": 0,
    }


def torch_zip(data, *members):
    names = members or ["archive/data.pkl"]
    return zipped(*((n, data) for n in names), ("archive/version", "3\n"))


# --------------------------------- Text -----------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n", " 12\n", "\t7 x\n"])
def test_text_has_one_symbol_a_line(path, newline):
    text = newline.join(SYMBOLS).encode()
    for content in (text, text + b"\n", b"\xef\xbb\xbf" + text):
        path.write_bytes(content)
        assert load_vocabulary(path) == load_vocabulary(str(path)) == SYMBOLS


def test_text_may_look_like_json(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[\n]\n{\n", encoding="utf-8")
    assert load_vocabulary(path) == ["[", "]", "{"]


def test_a_missing_file_is_named(path):
    with pytest.raises(FileNotFoundError, match="vocabulary"):
        load_vocabulary(path)


# --------------------------------- JSON -----------------------------------

SHUFFLED = {symbol: IDS[symbol] for symbol in sorted(IDS)}


@pytest.mark.parametrize("content", [SYMBOLS, SHUFFLED])
def test_json_has_a_list_or_ids(path, content):
    for ensure_ascii in (True, False):
        text = json.dumps(content, ensure_ascii=ensure_ascii, indent=1)
        path.write_text(text, encoding="utf-8")
        assert load_vocabulary(path) == SYMBOLS


def test_words_may_be_called_like_the_keys_of_an_object(path):
    ids = {"sym2idx": 1, "idx2sym": 0, "config": 3, "vocab": 2}
    path.write_text(json.dumps(ids))
    expected = ["idx2sym", "sym2idx", "vocab", "config"]
    assert load_vocabulary(path) == expected


def test_the_tokenizer_of_a_run_has_its_vocabulary(tmp_path):
    path = tmp_path / "tokenizer.json"
    save_tokenizer(WordTokenizer(SYMBOLS), path)
    assert load_vocabulary(path) == SYMBOLS


# -------------------------------- Pickles ---------------------------------


@pytest.mark.parametrize(
    "wrap, protocol",
    [*((bytes, n) for n in range(2, 6)), (torch_zip, 2), (torch_legacy, 2)],
)
def test_a_pickled_state_is_read(path, protocol, wrap):
    path.write_bytes(wrap(pickle.dumps(state(), protocol)))
    assert load_vocabulary(path) == SYMBOLS


@pytest.mark.parametrize(
    "modules, protocol", [("vocabulary", 2), ("utils.vocabulary", 5)]
)
def test_a_corpus_is_read_past_its_arrays(path, protocol, modules, monkeypatch):
    vocabulary = make(modules, "Vocab", monkeypatch, **state())
    corpus = make(
        *("data_utils", "Corpus", monkeypatch),
        vocab=vocabulary,
        dataset="wt103",
        train=np.arange(200, 400),
        valid=[np.arange(3, dtype=np.int32), np.zeros(0)],
        cutoffs=[0, np.int64(3)],
    )
    for content in (vocabulary, corpus):
        path.write_bytes(pickle.dumps(content, protocol))
        assert load_vocabulary(path) == SYMBOLS


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_tokenizer_is_read_past_its_members(path, protocol, monkeypatch):
    members = {
        str(i): make(*name.rsplit(".", 1), monkeypatch, data={"a": {}})
        for i, name in enumerate(
            [
                "sacremoses.normalize.MosesPunctNormalizer",
                "sacremoses.tokenize.MosesTokenizer",
                "tokenizers.AddedToken",
                "transformers.tokenization_utils.Trie",
            ]
        )
    }
    tokenizer = make(
        "transformers.models.transfo_xl.tokenization_transfo_xl",
        *("TransfoXLTokenizer", monkeypatch),
        **state(),
        **members,
    )
    for content in (tokenizer, vars(tokenizer)):
        path.write_bytes(pickle.dumps(content, protocol))
        assert load_vocabulary(path) == SYMBOLS


def string(text):
    """A `str` of Python 2, in protocol 2."""
    data = text.encode()
    return b"U" + bytes([len(data)]) + data


def python2_corpus():
    """What Python 2 writes with `pickle.dump(corpus, file, protocol=2)`."""
    symbols = b"".join(map(string, SYMBOLS))
    pairs = b"".join(
        b"](" + string(symbol) + b"K" + bytes([i]) + b"e"
        for i, symbol in enumerate(SYMBOLS)
    )
    sym2idx = b"ccollections\nOrderedDict\n](" + pairs + b"e\x85R"
    counter = b"ccollections\nCounter\n}" + string("the") + b"K\x02s\x85R"
    vocab = b"cvocabulary\nVocab\n)\x81}("
    vocab += string("counter") + counter
    vocab += string("idx2sym") + b"](" + symbols + b"e"
    vocab += string("sym2idx") + sym2idx + b"ub"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    array += b"K\x00\x85" + string("b") + b"\x87R(K\x01K\x01\x85"
    array += b"cnumpy\ndtype\n" + string("i8") + b"K\x00K\x01\x87R(K\x03"
    array += string("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array += b"\x89U\x08\xff\xff\x00\x00\x00\x00\x00\x00tb"
    corpus = b"cdata_utils\nCorpus\n)\x81}(" + string("vocab") + vocab
    return b"\x80\x02" + corpus + string("train") + array + b"ub."


def test_a_corpus_of_python_2_is_read(path):
    path.write_bytes(python2_corpus())
    assert load_vocabulary(path) == SYMBOLS


@pytest.mark.parametrize(
    "content, message",
    [
        (b"a\nb\nc\nb 3\n", "distinct.*'b' at index 3"),
        (b"a\n \nb\n", "line 2 has no symbol"),
        (b"", "line 1 has no symbol"),
        (b"a\n\n", "line 2 has no symbol"),
        (b"a\n\xff\n", "Expected text with one symbol per line; JSON with"),
        (b"\x00\x01\x02a", "zero byte after byte 0.*Expected text with one"),
        ("a\nb\n".encode("utf-16"), "iconv.*Expected text"),
        (gzip.compress(b"a\nb\n", mtime=0), "not text in UTF-8.*Expected text"),
        (b'["a", "b"', "Expecting ',' delimiter"),
        (b'["a", "b", "a"]', "distinct.*'a' at index 2"),
        (b'["a", ""]', "at least one character.*''"),
        (b'["a", 3]', "Received: 3"),
        (b"[]", "must not be empty"),
        (b'{"a": [1]}', "it holds something else. Expected text"),
        (b'{"a": 0, "b": true}', "it holds something else"),
        (b'{"idx2sym": "ab"}', "it holds something else"),
        (
            b'{"class_name": "ByteTokenizer", "config": {}}',
            "it holds something else",
        ),
        (b'{"a": 0, "b": 2}', "2 symbols must be 0 to 1. Received: 2 in"),
        (b'{"a": 0, "b": 0}', "Received: 0 in place of 1"),
        (b"PK\x03\x04abc", "truncated or damaged: BadZipFile"),
        (torch_zip(b"", "archive/model.json"), "not of torch.save"),
        (torch_zip(b"\x80\x02"), "the pickle is truncated"),
        (
            torch_zip(b"N.", "a/data.pkl", "b/data.pkl").replace(b"b/", b"a/"),
            "'a/data.pkl' twice",
        ),
        (torch_legacy(b""), "the pickle is truncated"),
        (torch_legacy(b"")[:-6], "the pickle is truncated"),
        (pickle.dumps({"idx2sym": "ab"}), "it holds something else"),
        (pickle.dumps(0x1950A86A20F9469CFC6D), "it holds something else"),
        (pickle.dumps([b"a"]), "must be distinct strings.*b'a'"),
        (b"\x80\x02c__main__\nVocab\n)\x81.", "must not be empty"),
        # A record that is its own vocabulary.
        (
            b"\x80\x02c__main__\nVocab\n)\x81q\x00}" + string("vocab")
            + b"h\x00sb.",
            "it holds something else",
        ),
        (b"\x80\x02U\x01aQ.", "data outside of it.*nothing in the file was"),
    ],
)  # fmt: skip
def test_wrong_text_json_and_pickles_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load_vocabulary(path)
    assert str(path) in str(error.value)


# ------------------------------- Malicious --------------------------------


def text(value):
    """A string, in any protocol."""
    return b"V" + str(value).encode("raw_unicode_escape") + b"\n"


def touch(marker):
    return text(f"touch {marker}")


def short(value):
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


# What refuses to load, and a pickle that makes the marker in `pickle.loads`.
MALICIOUS = {
    "reduce": (
        "os.system",
        lambda m: b"cos\nsystem\n(" + touch(m) + b"tR.",
    ),
    "dotted_stack_global": (
        "collections._sys.modules",
        lambda m: (
            b"\x80\x04" + short("collections") + short("_sys.modules")
            + b"\x930\x8c\x05posix\x8c\x06system\x93" + touch(m) + b"\x85R."
        ),
    ),
    "inst": ("os.system", lambda m: b"(" + touch(m) + b"ios\nsystem\n."),
}  # fmt: skip


def exists_soon(marker):
    for _ in range(500):
        if marker.exists():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "kind, wrap",
    [
        *((kind, bytes) for kind in MALICIOUS),
        *(("reduce", wrap) for wrap in (torch_zip, torch_legacy)),
    ],
)
def test_malicious_pickles_are_refused(kind, wrap, path, marker):
    name, payload = MALICIOUS[kind]
    data = b"\x80\x02" + payload(marker)
    pickle.loads(data)
    assert exists_soon(marker)  # the standard way executes it
    marker.unlink()
    path.write_bytes(wrap(data))
    message = f"asks for '{re.escape(name)}', .* nothing in the file was exec"
    with pytest.raises(ValueError, match=message):
        load_vocabulary(path)
    assert not marker.exists()


def test_extension_codes_are_refused(path, marker):
    data = b"\x80\x02\x82\xf1" + touch(marker) + b"\x85R."
    path.write_bytes(data)
    copyreg.add_extension("os", "system", 0xF1)
    try:
        pickle.loads(data)  # fills a cache of names
        assert exists_soon(marker)
        marker.unlink()
        with pytest.raises(ValueError, match="unregistered extension code"):
            load_vocabulary(path)
        assert not marker.exists()
    finally:
        copyreg.remove_extension("os", "system", 0xF1)


@pytest.mark.parametrize("state", [b"}U\x01aK\x01s", b"N}U\x01aK\x01s\x86"])
def test_a_name_has_no_state(path, state):
    path.write_bytes(b"\x80\x02c__main__\nVocab\n" + state + b"b.")
    with pytest.raises(ValueError, match="truncated or damaged.*state"):
        load_vocabulary(path)


def test_known_names_take_any_arguments_and_do_nothing(path, marker):
    """Names of functions that are known are not called either."""
    rest = b"0]" + string("a") + b"a."
    for call in (
        b"c_codecs\nencode\n" + touch(marker) + text("rot13") + b"\x86R",
        b"cre\n_compile\n" + text("(((") + b"K\x00\x86R",
        b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R",
        b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R",
        b"c__main__\nVocab\n" + touch(marker) + b"\x85\x81(K\x01tb",
    ):
        path.write_bytes(b"\x80\x02" + call + rest)
        assert load_vocabulary(path) == ["a"]
    assert not marker.exists()
