"""Texts of different lengths, read by segments of 4 with a memory of 6."""

import keras
import numpy as np
import pytest
from backends import dtype_of
from backends import gradients
from backends import refused
from factories import V
from factories import read_in_parts
from factories import seed_weights
from factories import small_backbone as backbone_of
from factories import small_model
from keras import ops

from txl_keras.data import pad_texts
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLTextClassifier

pytestmark = pytest.mark.every_backend

C, T = 3, 4
LENGTHS = [5, 1, 14, 4, 9]


def small_backbone(dtype=None, **config):
    """With one block: loops take seconds to trace through more."""
    return backbone_of(dtype, **{"num_layers": 1, **config})


def classifier(backbone=None, pooling="last", **config):
    config = {"segment_length": T, **config}
    model = TransformerXLTextClassifier(
        backbone or small_backbone(), C, pooling=pooling, **config
    )
    model.logits.kernel.assign(
        np.random.default_rng(1).normal(size=model.logits.kernel.shape)
    )
    return model


def texts(lengths=LENGTHS):
    rng = np.random.default_rng(2)
    return [rng.integers(V, size=length, dtype="int32") for length in lengths]


def states_of(backbone, ids):
    """Hidden states `(n, D)` of a text that is read alone, by segments."""
    ends = [*range(T, len(ids), T), len(ids)]
    lengths = np.diff(ends, prepend=0)
    return read_in_parts(backbone, lengths, token_ids=ids[None])[0][0]


@pytest.mark.parametrize(
    "config",
    [
        {"pooling": "mean", "memory_length": 0},
        {"pooling": "mean", "cold_start": "zeros", "num_layers": 2},
        {"attention_type": "shaw", "max_positions": 5},
        {"lstm": True},
    ],
    ids=str,
)
def test_each_text_is_read_as_if_alone(config):
    config = config.copy()
    pooling = config.pop("pooling", "last")
    if config.pop("lstm", False):
        backbone = LSTMBackbone(V, num_layers=2, hidden_dim=6)
    else:
        backbone = small_backbone(**config)
    model = classifier(backbone, pooling)
    logits = model(pad_texts(texts()))
    assert logits.shape == (len(LENGTHS), C)
    for ids, row in zip(texts(), logits, strict=True):
        states = states_of(backbone, ids)
        pooled = states[-1] if pooling == "last" else states.mean(axis=0)
        expected = pooled @ model.logits.kernel.numpy()
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_what_comes_after_a_text_does_not_matter():
    model = classifier(pooling="mean")
    padded = pad_texts(texts())
    expected = model(padded)
    ids, lengths = padded["token_ids"], padded["lengths"]
    is_text = np.arange(ids.shape[1]) < lengths[:, None]
    wider = np.pad(np.where(is_text, ids, V + 5), ((0, 0), (0, 9)))
    np.testing.assert_allclose(model((wider, lengths)), expected, atol=1e-6)
    np.testing.assert_allclose(
        classifier(model.backbone)((wider, lengths))[1],
        classifier(model.backbone)(padded)[1],
        atol=1e-6,
    )


def test_ids_alone_are_all_text():
    model = classifier()
    ids = np.stack(texts([6, 6]))
    expected = model({"token_ids": ids, "lengths": np.array([6, 6])})
    np.testing.assert_array_equal(model(ids), expected)
    np.testing.assert_array_equal(model([ids, np.array([6, 6])]), expected)


def test_gradients_are_those_of_the_segments_with_memory_held_fixed():
    # Two segments, the first as a memory that is a constant.
    model = classifier(small_backbone(num_layers=2))
    backbone = model.backbone
    (ids,) = texts([7])
    weights = backbone.trainable_variables
    _, memory = backbone(ids[None, :T])

    def last_segment():
        hidden, _ = backbone(ids[None, T:], memory=memory)
        return ops.sum(hidden[:, -1] @ model.logits.kernel)

    _, expected = gradients(last_segment, weights)
    _, got = gradients(lambda: ops.sum(model(ids[None])), weights)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.fixture(scope="module")
def fitted():
    """A model, what it learned, and how: the first of nine tokens counts."""
    rng = np.random.default_rng(5)
    ids = rng.integers(V, size=(90, 9), dtype="int32")
    labels = ids[:, 0] % C
    seed_weights(3)
    model = classifier(small_backbone(dropout=0.02, memory_length=8), "mean")
    model.compile(keras.optimizers.Adam(0.05))
    x = {"token_ids": ids, "lengths": np.full(90, 9)}
    history = model.fit(x, labels, batch_size=30, epochs=18, verbose=0)
    return model, x, labels, history.history


def test_fit_learns_from_what_was_read_before_the_last_segment(fitted):
    model, x, labels, history = fitted
    assert set(history) == {"loss", "accuracy"}
    assert history["accuracy"][-1] > 0.9
    assert (np.argmax(np.array(model(x)), axis=1) == labels).mean() > 0.9


def test_logits_are_of_full_precision():
    model = classifier(small_backbone("mixed_bfloat16"), "mean")
    logits = model(pad_texts(texts()))
    assert (model.compute_dtype, dtype_of(logits)) == ("bfloat16", "float32")


def test_dropout_is_another_in_every_segment_and_call():
    # Without memory, equal segments would be equal with one mask.
    backbone = small_backbone(dropout=0.5, memory_length=0)

    def seeded():
        seed_weights(7)
        return classifier(backbone, "mean")

    model = seeded()
    ids = np.array([[1, 2, 3, 4, 1, 2, 3, 4]])
    first, second = (model(ids, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    same = seeded()
    np.testing.assert_array_equal(same(ids, training=True), first)
    assert np.abs(seeded()(ids[:, :4], training=True) - first).max() > 1e-3


@pytest.mark.parametrize("length", [0, 10])
def test_a_length_that_cannot_be_is_an_error(length, fitted):
    model, x, *_ = fitted
    ids, lengths = x["token_ids"][:3], np.array([3, length, 6])
    message = r"`lengths` must hold integers in \[1, ?10"
    with pytest.raises(ValueError, match=message):
        model((ids, lengths))
    inputs = {"token_ids": ids, "lengths": lengths}
    with refused(message) as found:
        found.append(model.predict(inputs, verbose=0))


def test_labels_that_are_no_classes_are_an_error(fitted):
    model, x, labels, _ = fitted
    for wrong in (C, -1):
        labels = np.append(wrong, labels[1:])
        with refused("`y` must hold int") as found:
            found.append(model.evaluate(x, labels, batch_size=30, verbose=0))
    for wrong in (0.5, np.nan):
        with pytest.raises(ValueError, match="`y` must hold int"):
            model.compute_loss(
                y=np.array([wrong, 0, 1]), y_pred=np.ones((3, C))
            )


def test_a_summary_shows_every_shape():
    lines = []
    classifier(small_backbone()).summary(print_fn=lines.append)
    assert "?" not in "".join(lines)


def test_bad_arguments_are_errors():
    backbone = small_backbone()
    for arguments, message in (
        ({"num_classes": 1}, "num_classes=1"),
        ({"segment_length": 0}, "segment_length=0"),
        ({"pooling": "max"}, "pooling='max'"),
    ):
        with pytest.raises(ValueError, match=message):
            TransformerXLTextClassifier(
                backbone, **{"num_classes": 2, **arguments}
            )
    absolute = small_backbone(
        num_layers=1, attention_type="vaswani", memory_length=0
    )
    with pytest.raises(ValueError, match="attention_type='vaswani'"):
        TransformerXLTextClassifier(absolute, 2)
    with pytest.raises(ValueError, match="backbone=TransformerXLCausalLM"):
        TransformerXLTextClassifier(small_model(), 2)


def test_bad_inputs_are_errors():
    model = classifier()
    ids = np.stack(texts([6, 6]))
    for inputs, message in (
        ({"token_ids": ids, "lengths": np.array([6])}, "lengths"),
        ({"token_ids": ids}, r"keys 'token_ids' and 'lengths'.*\['token_ids'"),
        (ids[0], "`token_ids` must have the shape"),
        (ids + V, "must hold integers"),
    ):
        with pytest.raises(ValueError, match=message):
            model(inputs)
    model.compile("sgd")
    with refused("must hold int") as found:
        found.append(model.predict(ids + V, verbose=0))
