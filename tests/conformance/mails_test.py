"""Spam or ham: what a classifier gains by pre-training and by memory.

XLA_FLAGS= pytest -m large -n 0 -s tests/conformance/mails_test.py

Half an hour on 2 cores: a small language model reads the 7.7 MB of train once,
and then each of three classifiers twice.
"""

import gzip
import pathlib

import numpy as np
import pytest
from script_runs import results_of

from txl_keras.data import read_labelled_texts

DATA = pathlib.Path(__file__).parents[3] / "shared/data"
TRAIN, TEST = DATA / "spam_train.tsv.gz", DATA / "spam_test.tsv.gz"

pytestmark = [
    pytest.mark.large,
    pytest.mark.skipif(
        not TRAIN.exists(), reason="needs the mails in shared/data"
    ),
]


def word_count_accuracy():
    """Of a logistic regression on the counts of words."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear_model = pytest.importorskip("sklearn.linear_model")
    train, test = (
        read_labelled_texts(str(path), "1", "0") for path in (TRAIN, TEST)
    )
    vectorizer = text.CountVectorizer()
    regression = linear_model.LogisticRegression(max_iter=3000)
    regression.fit(vectorizer.fit_transform(train.texts), train.labels)
    predicted = regression.predict(vectorizer.transform(test.texts))
    return np.mean(predicted == np.array(test.labels))


def test_memory_and_pre_training_help(succeed, tmp_path):
    mails = read_labelled_texts(str(TRAIN), "1", "0")
    with gzip.open(tmp_path / "mails.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(mails.texts))
    succeed(
        "main.py",
        f"--workdir={tmp_path}/lm",
        f"--corpus={tmp_path}/mails.txt.gz",
        f"--data_dir={tmp_path}/data",
        r"--document_separator=\n",
        "--reset_documents",
        "--order=shuffle",
        "--tokenizer=sentencepiece",
        "--vocabulary_size=2000",
        "--num_layers=2",
        "--dropout=0.1",
        "--segment_length=128",
        "--batch_size=16",
        "--max_steps=1200",
        "--learning_rate=2e-3",
        "--warmup_steps=200",
    )

    def finetune(name, *others):
        succeed(
            "finetune.py",
            f"--workdir={tmp_path}/{name}",
            f"--initialize_from={tmp_path}/lm",
            f"--train_file={TRAIN}",
            f"--test_file={TEST}",
            "--text_column=1",
            "--label_column=0",
            "--pooling=mean",
            "--epochs=2",
            "--learning_rate=1e-3",
            *others,
        )
        scores = results_of(tmp_path / name)["test"]
        for part in (scores, scores["longer_than_segment"]):
            print(name, part["accuracy"], part["loss"])
        return scores

    print("word counts", word_count_accuracy())
    whole = finetune("whole")
    cut = finetune("cut", "--max_text_tokens=128")
    scratch = finetune("scratch", "--from_scratch")
    assert whole["accuracy"] > 0.97
    assert whole["loss"] < scratch["loss"]
    long, cut_long = (s["longer_than_segment"] for s in (whole, cut))
    assert long["accuracy"] > cut_long["accuracy"]
    assert long["loss"] < cut_long["loss"]
