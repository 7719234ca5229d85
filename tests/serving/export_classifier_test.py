import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from factories import small_backbone

from txl_keras.data import WordTokenizer
from txl_keras.data import pad_texts
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.serving import export
from txl_keras.serving import export_classifier

LABELS = ["ham", "né", "spam"]
WORDS = ["<unk>", "you", "won", "a", "car", "not"]
TOKENIZER = WordTokenizer(WORDS, line_end=None)
TEXTS = ["you won", "not a car you won not a car what", "car"]
MAX_TOKENS = 7


@pytest.fixture(scope="module")
def model():
    backbone = small_backbone(
        vocabulary_size=6, num_layers=1, initializer_stddev=0.5
    )
    return TransformerXLTextClassifier(backbone, 3, segment_length=4)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("served") / "mails" / "3")
    export_classifier(
        model,
        TOKENIZER,
        LABELS,
        path,
        MAX_TOKENS,
        {"step": 3},
        max_batch_size=3,
    )
    return path


@pytest.fixture(scope="module")
def loaded(path):
    return tf.saved_model.load(path)


def test_text_goes_in_and_probabilities_come_out(model, loaded):
    ids = [TOKENIZER.encode(text)[:MAX_TOKENS] for text in TEXTS]
    assert len(ids[1]) == MAX_TOKENS
    expected = tf.nn.softmax(model(pad_texts(ids)))
    for name in ("classify", "serving_default"):
        answer = loaded.signatures[name](text=tf.constant(TEXTS))
        np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-6)
        best = np.argmax(expected, axis=1)
        assert answer["label"].numpy().tolist() == [
            LABELS[i].encode() for i in best
        ]
        assert answer["labels"].numpy().tolist() == [
            [label.encode() for label in LABELS]
        ] * len(TEXTS)
    for text, row in zip(TEXTS, expected, strict=True):
        alone = loaded.signatures["classify"](text=tf.constant([text]))
        np.testing.assert_allclose(alone["probabilities"][0], row, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["car", ""], "`text` must have at least one"),
        ("car", "`text` must be a tensor of rank 1"),
        ([["car"]], "`text` must be a tensor of rank 1"),
        (["car"] * 4, "`text` must have at most 3 rows"),
    ],
)
def test_texts_that_cannot_be_are_refused(loaded, text, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        loaded.signatures["classify"](text=tf.constant(text))


def test_settings_lie_beside(path):
    settings = json.loads(
        (pathlib.Path(path) / "assets" / "settings.json").read_text("utf-8")
    )
    assert settings["labels"] == LABELS
    assert (settings["step"], settings["max_tokens"]) == (3, MAX_TOKENS)
    assert settings["model"]["num_classes"] == 3


def test_bad_arguments_are_errors(model, tmp_path):
    path = str(tmp_path / "1")
    other = WordTokenizer(WORDS[:2], line_end=None)
    with pytest.raises(ValueError, match="max_batch_size=0"):
        export_classifier(model, TOKENIZER, LABELS, path, max_batch_size=0)
    for arguments, message in (
        ((model, other, LABELS, path), "2 symbols"),
        ((model, TOKENIZER, LABELS[:2], path), "a list of 3 strings"),
        ((model, TOKENIZER, LABELS, path, 0), "max_tokens=0"),
        ((model, TOKENIZER, LABELS, __file__), "path="),
        ((model.backbone, TOKENIZER, LABELS, path), "TransformerXLTextClassif"),
    ):
        with pytest.raises(ValueError, match=message):
            export_classifier(*arguments)
    with pytest.raises(ValueError, match="For a classifier, use `export_cl"):
        export(model, path)
    assert not list(tmp_path.iterdir())
