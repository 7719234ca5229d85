"""Runs train/finetune.py."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import save_run
from factories import small_model
from script_runs import CLASSIFIER_SIZES
from script_runs import metrics_of
from script_runs import results_of
from script_runs import write_mails

from txl_keras.data import ByteTokenizer
from txl_keras.data import SentencePieceTokenizer
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLTextClassifier


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mails")
    return {
        "train_file": write_mails(folder / "train.tsv", range(160)),
        "test_file": write_mails(folder / "test.tsv", range(200, 230)),
    }


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("runs") / "lm")
    model = small_model(
        vocabulary_size=256, num_layers=1, hidden_dim=16, memory_length=8,
        initializer_stddev=0.02,
    )  # fmt: skip
    flags = {"segment_length": 8}
    save_run(path, model, 0, ByteTokenizer(), (model, 12), flags=flags)
    return path, model


def flags_of(workdir, files, *others):
    named = [f"--{name}={path}" for name, path in files.items()]
    return [f"--workdir={workdir}", *named, *others]


def test_a_run_learns_scores_and_exports(
    files, language_model, succeed, fail, tmp_path, monkeypatch
):
    path, model = language_model
    run, started = tmp_path / "run", []
    monkeypatch.setattr(
        keras.callbacks.EarlyStopping,
        "on_train_begin",
        lambda callback, logs=None: started.extend(
            callback.model.backbone.get_weights()
        ),
    )
    printed = succeed(
        "finetune.py",
        *flags_of(run, files, f"--initialize_from={path}"),
        "--pooling=mean",
        "--epochs=8",
        "--patience=8",
        "--learning_rate=0.02",
        "--dropout=0.01",
    )
    assert f"Starts from the best weights of {path}, step 12." in printed
    assert re.search("^Epoch 8/8\n.*val_loss: ", printed, re.MULTILINE)

    results, metrics = results_of(run), metrics_of(run)
    assert [line["epoch"] for line in metrics] == list(range(1, 9))
    best = min(metrics, key=lambda line: line["val_loss"])
    assert (best["epoch"], best["step"]) == (results["epoch"], results["step"])
    assert results["valid"]["accuracy"] == best["val_accuracy"]
    assert np.sum(results["test"]["confusion"]) == 30
    assert results["test"]["accuracy"] > 0.9
    long = results["test"]["longer_than_segment"]
    assert 15 < np.sum(long["confusion"]) <= 30

    # The best, in both forms.
    loaded = TransformerXLTextClassifier.from_preset(run / "model")
    assert loaded.segment_length == 8 and loaded.backbone.dropout == 0.01
    texts = ["WIN 9 xxxxxxxxxxxxxxxxxxxxx", "meet 4"]
    served = tf.saved_model.load(str(run / "export" / str(results["step"])))
    answer = served.signatures["classify"](text=tf.constant(texts))
    assert answer["label"].numpy().tolist() == [b"spam", b"ham"]
    for text, row in zip(texts, answer["probabilities"], strict=True):
        ids = np.frombuffer(text.encode(), "uint8").astype("int32")
        np.testing.assert_allclose(
            tf.nn.softmax(loaded(ids[None]))[0], row, atol=1e-5
        )
    assert_same(started, model.backbone.weights)
    changed = loaded.backbone.blocks[0].weights[0] - started[1]
    assert np.abs(changed).max() > 1e-4

    error = fail("finetune.py", *flags_of(run, files))
    assert "`workdir` must be a new or empty folder" in error
    error = fail("generate.py", f"--workdir={run}/model", "--max_tokens=1")
    assert "which holds a TransformerXLTextClassifier" in error


def test_bad_input_is_one_message_before_any_work(files, refuse, tmp_path):
    paths = {}
    for name, content in {
        "unseen": "label\ttext\nham\ta\neggs\tb\n",
        "empty": "label\ttext\nham\t \n",
        "one": "label\ttext\nham\ta\nham\tb\n",
    }.items():
        paths[name] = tmp_path / f"{name}.tsv"
        paths[name].write_text(content)
    backbone = TransformerXLBackbone(256, 1, 2, 8, 12)
    model = TransformerXLTextClassifier(backbone, 2)
    classifier = tmp_path / "classifier"
    save_run(classifier, model, 0, ByteTokenizer(), (model, 0))
    train, one = f"--train_file={files['train_file']}", paths["one"]
    cases = (
        (
            [f"--test_file={paths['unseen']}"],
            ["'eggs' at", "unseen.tsv, line 3"],
        ),
        ([f"--test_file={paths['empty']}"], ["' ' at", "empty.tsv, line 2"]),
        (["--text_column=body"], ["'label', 'n', 'text'", "'body'"]),
        (["--label_column=text"], ["too few texts of each label", "160 texts"]),
        (
            [f"--train_file={one}", f"--valid_file={one}"],
            ["at least two labels", "['ham']"],
        ),
        (["--train_file="], ["`train_file`"]),
        (["--test_file=no.tsv"], ["no.tsv"]),
        (["--tfds_name=imdb"], ["Either `train_file` or `tfds_name`"]),
        (
            ["--initialize_from=/none"],
            ["`initialize_from`", "path of a folder"],
        ),
        (
            [f"--initialize_from={classifier}"],
            ["`initialize_from`", "TransformerXLTextClassifier"],
        ),
        (
            ["--initialize_from=/none", "--tokenizer=words"],
            ["`tokenizer` cannot be given"],
        ),
        (["--attention_type=vaswani", "--memory_length=0"], ["'vaswani'"]),
        (["--initializer_stddev=nan"], ["`initializer_stddev`", "nan"]),
        (["--from_scratch"], ["`from_scratch`", "without --initialize_from"]),
    )
    run = tmp_path / "run"
    refuse("finetune.py", cases, f"--workdir={run}", train, *CLASSIFIER_SIZES)
    assert not run.exists()


def test_weights_that_a_last_step_spoils_are_not_exported(
    files, fail, tmp_path
):
    run = tmp_path / "run"
    error = fail(
        "finetune.py", *flags_of(run, files, *CLASSIFIER_SIZES), "--epochs=1",
        "--batch_size=200", "--learning_rate=1e38",
    )  # fmt: skip
    assert "not finite in epoch 1" in error
    assert not (run / "export").exists()


def test_the_best_weights_before_a_loss_of_nan_are_kept(
    files, succeed, tmp_path, monkeypatch
):
    def spoil(callback, epoch, logs=None):
        if epoch == 1:
            kernel = callback.model.logits.kernel
            kernel.assign(kernel * float("nan"))

    monkeypatch.setattr(keras.callbacks.EarlyStopping, "on_epoch_begin", spoil)
    # Its tokenizer has no operations of TensorFlow, so there is no export.
    monkeypatch.setattr(SentencePieceTokenizer, "encode_in_graph", None)
    run = tmp_path / "run"
    printed = succeed(
        "finetune.py", *flags_of(run, files, *CLASSIFIER_SIZES), "--epochs=3"
    )
    assert "not finite in epoch 2" in printed
    assert "weights of epoch 1 are kept" in printed
    assert "No export" in printed
    assert not (run / "export").exists()
    assert results_of(run)["epoch"] == 1
    model = TransformerXLTextClassifier.from_preset(run / "model")
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
