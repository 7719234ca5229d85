import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import small_model

from txl_keras.models import LSTMBackbone
from txl_keras.training import utilization
from txl_keras.training.utilization import device_memory
from txl_keras.training.utilization import model_flops
from txl_keras.training.utilization import peak_flops
from txl_keras.training.utilization import training_bytes

SIZES = {
    "vocabulary_size": 101,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 8,
    "head_dim": 5,
    "intermediate_dim": 17,
    "memory_length": 7,
}


@functools.cache
def make_model(**overrides):
    return small_model(**{**SIZES, **overrides})


def test_flops_of_a_step_are_a_count_by_hand():
    # B, T, M, S = 4, 6, 7, 13; D, NH, F, V, L = 8, 15, 17, 101, 2.
    queries_and_output = 2 * (2 * 6 * 8 * 15)
    keys_and_values = 2 * (2 * 13 * 8 * 15)
    feed_forward = (2 * 6 * 8 * 17) + (2 * 6 * 17 * 8)
    scores_and_sum = 3 * (2 * 6 * 13 * 15)
    layer = queries_and_output + keys_and_values + feed_forward + scores_and_sum
    expected = 4 * (2 * layer + 2 * 6 * 8 * 101)
    assert model_flops(make_model(), 4, 6) == expected
    assert model_flops(make_model(), 4, 6, training=True) == 3 * expected


def test_memory_and_position_scores_count():
    # Seven keys fewer: keys and values, and three products of attention.
    relative = model_flops(make_model(memory_length=0), 4, 6)
    fewer = 4 * 2 * (4 * 7 * 8 * 15 + 6 * 6 * 7 * 15)
    assert relative == model_flops(make_model(), 4, 6) - fewer
    absolute = make_model(memory_length=0, attention_type="vaswani")
    without_scores = relative - 4 * 2 * (2 * 6 * 6 * 15)
    assert model_flops(absolute, 4, 6) == without_scores


def test_flops_of_an_lstm_are_a_count_by_hand():
    # B, T = 4, 6; D, V, L = 8, 101, 2: four gates of two products.
    model = small_model(make=LSTMBackbone, vocabulary_size=101, num_layers=2)
    layer = 4 * 2 * (2 * 6 * 8 * 8)
    assert model_flops(model, 4, 6) == 4 * (2 * layer + 2 * 6 * 8 * 101)


@pytest.mark.parametrize(
    "embedding, flops_of_a_token",
    [
        ({"cutoffs": (20, 60)}, 2 * 8 * (20 + 2)),
        ({"cutoffs": (20, 60), "div_val": 2}, 2 * 8 * (20 + 2) + 2 * 8 * 8),
        ({"embedding_dim": 3}, 2 * 3 * 101 + 2 * 8 * 3),
    ],
)
def test_of_the_softmax_the_head_counts(embedding, flops_of_a_token):
    plain, other = make_model(), make_model(**embedding)
    difference = model_flops(other, 4, 6) - model_flops(plain, 4, 6)
    assert difference == 4 * 6 * (flops_of_a_token - 2 * 8 * 101)


@pytest.mark.parametrize("size", ["batch_size", "segment_length"])
def test_sizes_are_checked(size):
    sizes = {"batch_size": 4, "segment_length": 6, size: -1}
    with pytest.raises(ValueError, match=f"{size}=-1"):
        model_flops(make_model(), **sizes)


def test_a_peak_is_measured(monkeypatch):
    monkeypatch.setattr(utilization, "_SIZES", (32, 64))
    monkeypatch.setattr(utilization, "_SECONDS_PER_TRIAL", 1e-3)
    peak = peak_flops("bfloat16")
    assert np.isfinite(peak) and peak > 0


def test_the_bytes_of_training_are_exact():
    model, optimizer = make_model(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    parts = training_bytes(model, optimizer, 4)
    stack = model.backbone.memory_stack(4)
    assert parts == {
        "weights": 4 * model.count_params(),
        "gradients": 4 * model.count_params(),
        "optimizer": nbytes(optimizer.variables),
        "memory": nbytes(stack.state_variables),
    }
    assert parts["optimizer"] > 8 * model.count_params()  # two slots
    pieces = training_bytes(model, optimizer, 4, accumulate_steps=4)
    assert pieces == {**parts, "gradients": 2 * parts["gradients"]}


def nbytes(variables):
    return sum(tf.convert_to_tensor(v).numpy().nbytes for v in variables)


def test_the_peak_of_a_cpu_is_the_process_s():
    before = device_memory()["peak"]
    peak = device_memory()["peak"]
    # In bytes: Python and TensorFlow take some hundreds of MiB.
    assert 10 * 2**20 < before <= peak < 2**40


def test_of_several_gpus_the_fullest_counts(monkeypatch):
    infos = {
        "/device:GPU:0": {"current": 30, "peak": 50},
        "/device:GPU:1": {"current": 20, "peak": 70},
    }
    gpus = [tf.config.LogicalDevice(name, "GPU") for name in infos]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    monkeypatch.setattr(
        tf.config.experimental, "get_memory_info", infos.__getitem__
    )
    assert device_memory() == {"in_use": 30, "peak": 70}
