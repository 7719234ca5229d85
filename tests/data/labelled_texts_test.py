import gzip
import json

import pytest

from txl_keras.data import LabelledTexts
from txl_keras.data import labelled_texts
from txl_keras.data import read_labelled_texts
from txl_keras.data.corpora import files

NUMBERS = {"text_column": "1", "label_column": "0"}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        content = content.encode("utf-8")
        path.write_bytes(
            gzip.compress(content) if name.endswith(".gz") else content
        )
        return str(path)

    return write


def test_tsv_without_names_is_read_as_it_stands(write):
    path = write("a.tsv.gz", 'ham\t"quoted", né\\n\r\n\nspam\t1\u2028 2\n')
    mails = read_labelled_texts(path, **NUMBERS)
    assert mails.texts == ['"quoted", né\\n', "1\u2028 2"]
    assert mails.labels == ["ham", "spam"]
    assert mails.lines[1] == 3


def test_csv_has_quotes_newlines_and_long_values(write):
    long = "x" * 200_000
    content = f'id,label,text\n1,a,"one, ""two""\nthree"\n2,b,{long}\n'
    texts = read_labelled_texts(write("a.csv", "\ufeff" + content))
    assert texts.texts == ['one, "two"\nthree', long]
    assert texts.labels == ["a", "b"]
    assert texts.lines[1] == 4


def test_json_lines_may_have_integers_as_labels(write):
    rows = [{"stars": 5, "review": "good"}, {"stars": 1, "review": "bad\n"}]
    path = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    texts = read_labelled_texts(path, "review", "stars")
    assert (texts.texts, texts.labels) == (["good", "bad\n"], ["5", "1"])


@pytest.mark.parametrize(
    "name,content,columns,message",
    [
        ("a.txt", "a\tb", NUMBERS, r"must end in \.tsv, \.csv or \.jsonl"),
        ("a.tsv", "label\tbody\nham\thi\n", {}, "text_column='text'.*line 2"),
        ("a.csv", "text,class\nhi,ham\n", {}, "label_column='label'"),
        ("a.tsv", "ham\thi\n", {**NUMBERS, "text_column": "2"}, "'0', '1'"),
        ("a.jsonl", '{"text": "hi"}', {}, "label_column='label', .*line 1"),
        ("a.tsv", "ham\thi\nspam\n", NUMBERS, "2 columns.*1 at .*line 2"),
        ("a.csv", 'text,label\n"a"b,c\n', {}, "line 2"),
        ("a.tsv", "\thi\n", NUMBERS, "Every label .*line 1"),
        ("a.tsv", "\n", NUMBERS, "must have texts"),
        ("a.jsonl", '{"text": "a", "label": null}', {}, "None at"),
        ("a.jsonl", '{"text": "a", "label"\n', {}, "line 1"),
        ("a.jsonl", "[]", {}, r"line 1 .*JSON object. Received: \[\]"),
        ("a.jsonl", '{"text": "a", "label": 0.5}', {}, "Every label .* 0.5 at"),
    ],
)
def test_a_bad_file_is_an_error_with_its_place(
    write, name, content, columns, message
):
    with pytest.raises(ValueError, match=message):
        read_labelled_texts(write(name, content), **columns)


def test_rows_are_refused_before_they_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_FREE_BYTES", 1 << 16)
    path = tmp_path / "a.tsv.gz"
    with pytest.raises(FileNotFoundError, match=r"a\.tsv\.gz"):
        read_labelled_texts(path)
    noise = [f"{i * 7919 % 10000:04}" for i in range(600)]
    lines = "".join(f"b\t{x}\n" for x in noise)
    path.write_bytes(gzip.compress(lines.encode()))
    assert read_labelled_texts(path, **NUMBERS).texts == noise
    # Far less than 64 KiB in the file, but not in memory.
    path.write_bytes(gzip.compress(b"b\ta\n" * 2**13))
    with pytest.raises(ValueError, match="must not unpack to more than 200"):
        read_labelled_texts(path, **NUMBERS)
    (tmp_path / "a.tsv").write_text("b\ta\n" * 2**12)
    assert len(read_labelled_texts(tmp_path / "a.tsv", **NUMBERS)) == 2**12


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.tsv", "text\tlabel\na\tb\n" + "c" * 3000, "every 1,000 bytes"),
        ("a.csv", 'text,label\na,b\nc,"d\n' + "e\n" * 1100, "line .*in quotes"),
    ],
)
def test_a_row_without_an_end_is_not_kept(
    name, content, message, write, monkeypatch
):
    monkeypatch.setattr(labelled_texts, "_MAX_TEXT_BYTES", 1000)
    monkeypatch.setattr(files, "CHUNK_BYTES", 100)
    with pytest.raises(ValueError, match=message):
        read_labelled_texts(write(name, content))


def test_texts_and_labels_are_strings():
    for texts, labels, message in (
        (["a", "b"], ["x", 0.5], "Every label must be.* 0.5 at mails, text 1"),
        (["a", None], ["x", "y"], "Every text must be.*None at mails, text 1"),
        (["a", "b"], ["x"], "mails must have .*2 texts and 1 labels"),
    ):
        with pytest.raises(ValueError, match=message):
            LabelledTexts(texts, labels, "mails")


def test_labels_are_numbered_as_in_train():
    train = LabelledTexts(["a", "b", "c"], ["spam", "ham", "spam"], "train")
    names = train.label_names()
    assert names == ["ham", "spam"]
    assert train.label_ids(names) == [1, 0, 1]
    test = LabelledTexts(["a", "b"], ["ham", "eggs"], "mails.tsv", [3, 8])
    with pytest.raises(
        ValueError, match=r"\['ham', 'spam'\].*'eggs' at mails.tsv, line 8"
    ):
        test.label_ids(names)


def test_a_text_is_always_on_the_same_side_of_a_split():
    words = [f"text {i % 150}" for i in range(200)]  # 50 of them twice
    labels = [str(i % 150 % 30) for i in range(200)]
    texts = LabelledTexts(words, labels, "all")
    first, second = texts.split(0.2)
    assert len(first) + len(second) == 200
    assert 20 < len(second) < 60
    assert not set(first.texts) & set(second.texts)
    for part in (first, second):
        for text, label in zip(part.texts, part.labels, strict=True):
            assert int(text.split()[1]) % 30 == int(label)
    # The first part has texts of every label.
    labels = [f"only of {word}" for word in second.texts[:3]]
    rare = LabelledTexts(
        [*first.texts, *second.texts],
        [*first.labels, *labels, *second.labels[3:]],
        "some labels are rare",
    )
    train, valid = rare.split(0.2)
    assert {*labels} <= {*train.labels}
    assert valid.texts == [x for x in second.texts if x not in train.texts]


def test_too_little_cannot_be_split():
    texts = LabelledTexts(["a"], ["b"], "few")
    for share, message in ((0.5, "few has too few"), (0, "`share` must be")):
        with pytest.raises(ValueError, match=message):
            texts.split(share)
