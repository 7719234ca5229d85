import keras
import pytest
import tensorflow as tf
from factories import small_model

from txl_keras.training.memory_estimate import estimate_bytes


def make_model(dtype=None, **overrides):
    sizes = {"vocabulary_size": 19, "num_layers": 2, "num_heads": 3}
    sizes |= {"intermediate_dim": 17, "memory_length": 7, **overrides}
    return small_model(dtype, **sizes)


def estimate(model, optimizer=None, rows=4, segment_length=6):
    optimizer = optimizer or keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    return estimate_bytes(model, optimizer, rows, segment_length)


def nbytes(variables):
    return sum(tf.convert_to_tensor(v).numpy().nbytes for v in variables)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_what_is_held_is_exact(dtype):
    model = make_model(dtype)
    optimizer = keras.optimizers.Adam()
    parts = estimate(model, optimizer)
    assert parts["weights"] == 4 * model.count_params()
    assert parts["gradients"] == 4 * model.count_params()
    assert parts["optimizer"] == nbytes(optimizer.variables)
    assert parts["optimizer"] > 8 * model.count_params()  # two slots
    stack = model.backbone.memory_stack(4)
    assert parts["memory"] == nbytes(stack.state_variables)


def test_pieces_need_the_activations_of_their_rows_and_gradients_twice():
    model, optimizer = make_model(), keras.optimizers.Adam()
    whole = estimate(model, optimizer, rows=12)
    pieces = estimate_bytes(model, optimizer, 12, 6, accumulate_steps=4)
    assert pieces == {
        **whole,
        "gradients": 2 * whole["gradients"],
        "activations": whole["activations"] // 4,
    }


def test_activations_grow_with_each_size():
    activations = estimate(make_model())["activations"]
    assert estimate(make_model(), rows=12)["activations"] == 3 * activations
    for size, value in {
        "vocabulary_size": 190,
        "num_layers": 3,
        "num_heads": 4,
        "hidden_dim": 10,
        "head_dim": 6,
        "intermediate_dim": 18,
        "memory_length": 8,
    }.items():
        parts = estimate(make_model(**{size: value}))
        assert parts["activations"] > activations, size
    half = estimate(make_model("mixed_bfloat16"))["activations"]
    assert activations / 2 < half < activations
    whole = estimate(make_model(vocabulary_size=2000))["activations"]
    tails = estimate(make_model(vocabulary_size=2000, cutoffs=(40,)))
    assert tails["activations"] < whole
