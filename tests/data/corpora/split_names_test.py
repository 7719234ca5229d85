import pytest

from txl_keras.data.corpora.split_names import named_splits

TEXT = (".txt", ".jsonl")


def split(names):
    """Splits files, which are smaller in folders and where a word says so."""
    sizes = {
        name: 9 if "/" in name or "small" in name else 40 + i
        for i, name in enumerate(names)
    }
    return named_splits("folder", sizes, TEXT)


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("training.txt", "validation.txt", "testing.txt"),
        ("my_train.txt", "my_valid.txt", "my_test.txt"),
        ("Train-a.raw", "A-Val.raw", "a_TEST.raw"),
        ("train-0-of-9.jsonl.gz", "validation-0-of-1.txt", "test_0.txt"),
        ("data/train-0.txt", "data/dev-0.txt", "data/test-0.txt"),
        ("a/b-training/1", "a/b-dev/1", "a/b-testing/1"),
        ("train/1.md", "dev/1.md", "test/the_train.md"),
        ("split=train/0.txt", "split=validation/0.txt", "split=test/0.txt"),
        ("my train (1).txt", "my valid@1.txt", "my test.txt"),
        ("TrainData.txt", "ValidData.txt", "myTestData.txt"),
        ("a_train.csv", "a_valid.txt", "a_test.tsv"),
    ],
)
def test_whole_words_name_a_split(names):
    train, valid, test = names
    expected = {"train": [train], "valid": [valid], "test": [test]}
    assert split(names) == expected
    assert split([*names, "small.html"]) == expected


@pytest.mark.parametrize("more", ["other.txt", "wiki.other.txt", "a/b.txt"])
def test_exact_names_at_the_top_leave_out_others(more):
    names = ["wiki.train.txt", "train/1", "wiki.val.txt", "wiki.test.txt"]
    assert split([*names, more]) == {
        "train": names[:2], "valid": names[2:3], "test": names[3:]
    }  # fmt: skip


@pytest.mark.parametrize(
    "names, received",
    [
        # One of three is missing.
        (["my_train.txt", "my_test.txt"], "only my_test.txt and my_train.txt"),
        (["train.py", "test.py"], "only test.py and train.py"),
        (["data/train-0", "data/train-1", "data/test-0"], "only data/test-0"),
        # A name of two splits.
        (["a_train.txt", "a_dev.txt", "train_test.txt"], "train_test.txt"),
        (["x/train/1.txt", "x/dev/1.txt", "y/test/train-2.txt"], "several"),
        # Names of some files only.
        (["a_train.txt", "a_dev.txt", "a_test.txt", "b.txt"], "beside b.txt"),
        (["c0.txt", "c1.txt", "c_valid.txt", "c_test.txt"], "beside c0.txt"),
        (["a.txt", "b.txt", "c.txt", "test.txt"], "test.txt beside a.txt"),
        (["a.txt", "b.txt", "c.txt", "dev/0.txt"], "dev/0.txt beside a.txt"),
        (["a/train/1.txt", "a/dev/1.txt", "a/test/1.txt", "b/c.txt"], "b/c"),
        (["train/a.md", "test/b.md", "README.md"], "beside README.md"),
        (["a_train.md", "a_dev.md", "a_test.md", "b.md"], "beside b.md"),
        (["a_train.tsv", "a_dev.tsv", "a_test.tsv", "b.tsv"], "beside b.tsv"),
        (["a/train/1", "a/dev/1", "a/test/1", *"bcde"], "beside b, c"),
    ],
)
def test_names_that_may_be_of_splits_are_refused(names, received):
    with pytest.raises(ValueError, match=f"for all of train.*{received}"):
        split(names)


@pytest.mark.parametrize(
    "names",
    [
        # Parts of one split are divided like any other files.
        [f"train-{i}-of-5.txt" for i in range(5)],
        [f"test/{i}.txt" for i in range(5)],
        # Accidents: in code, and deep in a large folder.
        ["train.py", "a_test.py", *(f"{i}.py" for i in range(5))],
        ["a.py", "small-dev.txt", "small-test.txt"],
        ["Turing_Test.txt", *(f"{i}.txt" for i in range(5))],
        ["ref/validation.txt", "topics/testing/1.txt", "1.txt", "2.txt"],
        ["trains.txt", "tests.txt", "devices.txt", "valid1.txt"],
    ],
)
def test_other_names_do_not_count(names):
    assert split(names) is None
