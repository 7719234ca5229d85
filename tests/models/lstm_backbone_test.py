import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import D
from factories import V
from factories import random_ids
from factories import seed_weights
from factories import small_model

from txl_keras.checkpoints import save_hugging_face
from txl_keras.data import ByteTokenizer
from txl_keras.data import Segments
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import check_slides
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.models import LSTMBackbone
from txl_keras.models import SegmentReader
from txl_keras.optimizers import build_optimizer
from txl_keras.serving import export
from txl_keras.training.trainer import Trainer

B, T, L = 3, 7, 2


def make_model(dtype=None, **changes):
    seed_weights(5)
    changes = {"initializer_stddev": 0.5, "num_layers": L, **changes}
    return small_model(dtype, LSTMBackbone, **changes)


def test_the_layers_are_those_of_keras():
    backbone = make_model().backbone
    ids = random_ids(B, T)
    hidden, memory = backbone(ids)
    x = backbone.token_embedding(ids) * D**0.5
    for i, layer in enumerate(backbone.layers_of_cells):
        expected = keras.layers.LSTM(
            D, return_sequences=True, return_state=True
        )
        expected.build(x.shape)
        expected.set_weights(layer.get_weights())
        x, *state = expected(x)
        for ours, theirs in zip(
            memory.states[2 * i : 2 * i + 2], state, strict=True
        ):
            np.testing.assert_allclose(ours[:, 0], theirs, atol=1e-6)
    np.testing.assert_allclose(hidden, x, atol=1e-6)


def test_text_is_read_in_segments_and_not_token_by_token():
    model = make_model(vocabulary_size=256, num_layers=1)
    model.tokenizer = ByteTokenizer()
    model.compile("sgd")
    model.fit("to be or not to be, " * 26, batch_size=2, verbose=0)
    assert model.optimizer.iterations == 2  # of 2 x 128 bytes


def test_a_reader_remembers_the_real_tokens_of_each_row():
    model = make_model()
    ids = random_ids(B, 2 * T)
    lengths = np.array([T, 0, 3], "int32")
    reader = SegmentReader(model.backbone, B, T)
    reader.begin()
    hidden, entries = reader.read(ids[:, :T])
    np.testing.assert_allclose(hidden, model.backbone(ids[:, :T])[0], atol=1e-6)
    reader.remember(entries, lengths)
    hidden, _ = reader.read(ids[:, T:])
    for row, length in enumerate(lengths):
        text = np.concatenate([ids[row, :length], ids[row, T:]])[None]
        expected = model.backbone(text)[0][0, length:]
        np.testing.assert_allclose(hidden[row], expected, atol=1e-6)
    reader.reset_rows(tf.constant([True, False, False]))
    hidden, _ = reader.read(ids[:, :T])
    cold = model.backbone(ids[:, :T])[0]
    np.testing.assert_allclose(hidden[0], cold[0], atol=1e-6)
    assert np.abs(hidden[2] - cold[2]).max() > 1e-4
    assert reader.num_bytes == B * 2 * L * 4 * D


def test_it_is_trained_and_scored_as_transformer_xl_is():
    model = make_model(num_layers=1)
    strategy = tf.distribute.get_strategy()
    text = np.tile(np.arange(V), 40)
    trainer = Trainer(
        model, build_optimizer("adam", learning_rate=0.05), strategy, B
    )
    segments = Segments(text, B, T, drop_remainder=True)
    losses = trainer.train(iter(segments.distribute(strategy)), 150)["loss"]
    assert losses[0] > 2 and losses[-1] < 0.1

    nll = np.empty(30, np.float32)
    Evaluator(model, strategy, 2, T).evaluate(
        Segments(text[:30], 2, T, drop_remainder=False), token_nll=nll
    )
    expected, _ = model.score(text[None, :14], text[None, 1:15])
    np.testing.assert_allclose(nll[1:15], expected[0], atol=1e-5)


def test_a_preset_gives_it_the_sizes_that_it_has():
    backbone = LSTMBackbone.from_preset("enwik8_base", num_layers=1)
    assert (backbone.hidden_dim, backbone.dropout) == (512, 0.1)
    assert backbone.num_layers == 1


def test_what_an_lstm_has_not_is_refused(tmp_path):
    model = make_model()
    with pytest.raises(ValueError, match="`memory_length`.*memory_length=9"):
        model.backbone.initial_memory(B, memory_length=9)
    with pytest.raises(ValueError, match="`memory_length`.*memory_length=0"):
        SegmentReader(model.backbone, B, T, memory_length=0)
    with pytest.raises(ValueError, match="`backbone`.*LSTMBackbone"):
        warmup_segments(model.backbone, T)
    with pytest.raises(ValueError, match="`stride`.*LSTMBackbone"):
        check_slides(model.backbone, memory_length=0)
    with pytest.raises(ValueError, match="`model`.*LSTMBackbone"):
        export(model, str(tmp_path / "1"))
    with pytest.raises(ValueError, match="`model`.*LSTMBackbone"):
        save_hugging_face(model, tmp_path / "2")
