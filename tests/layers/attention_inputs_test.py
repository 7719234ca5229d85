"""Tests of masks, memories and positions that attention layers refuse."""

import keras
import numpy as np
import pytest
from backends import gradients
from factories import assert_same
from keras import ops

from txl_keras.backend import tf
from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers import ShawMultiHeadAttention
from txl_keras.layers import TwoStreamRelativeAttention

pytestmark = pytest.mark.every_backend

B, T, M, D, N, H = 2, 3, 5, 8, 4, 7
S = M + T
LAYERS = {
    "relative": RelativeMultiHeadAttention(N, H),
    "shaw": ShawMultiHeadAttention(N, H, max_positions=6),
    "two_stream": TwoStreamRelativeAttention(N, H),
}
QUERY = np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")
MEMORY = np.random.default_rng(2).normal(size=(B, M, D)).astype("float32")


# What refuses and hides is one for "relative" and "shaw".
MASKS = [
    ("shaw", "query_mask", (B, T)),
    ("relative", "memory_mask", (B, M)),
    ("relative", "attention_mask", (B, T, S)),
    ("two_stream", "content_mask", (B, T)),
    ("two_stream", "memory_mask", (B, M)),
    ("two_stream", "permutation_mask", (B, T, T)),
]


def graph_of(layer, mask, dtype):
    """A function of states, memory and a mask whose sizes are not known."""
    rank = 3 if mask in ("attention_mask", "permutation_mask") else 2
    states = tf.TensorSpec((None, None, D))
    return tf.function(
        lambda query, memory, value: layer(
            query, memory=memory, **{mask: value}
        ),
        input_signature=(states, states, tf.TensorSpec((None,) * rank, dtype)),
    )


@pytest.mark.tensorflow
@pytest.mark.parametrize("name,mask,shape", MASKS)
def test_a_mask_of_another_shape_or_of_numbers_is_an_error(name, mask, shape):
    layer = LAYERS[name]
    of_unknown_sizes = graph_of(layer, mask, "bool")
    message = f"`{mask}` must have"
    for axis in range(len(shape)):
        wrong = list(shape)
        wrong[axis] += 1
        wrong = np.ones(wrong, bool)
        with pytest.raises(ValueError, match=message):
            layer(QUERY, memory=MEMORY, **{mask: wrong})
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            of_unknown_sizes(QUERY, MEMORY, wrong)
    for value in (0.0, -10000, 1j):
        with pytest.raises(ValueError, match=f"`{mask}` must be boolean"):
            layer(QUERY, memory=MEMORY, **{mask: np.full(shape, value)})


def call_and_gradients(name, is_real, **arguments):
    """Outputs of real queries, and the gradients of weights from them."""

    def loss():
        outputs = keras.tree.flatten(LAYERS[name](**arguments))
        outputs = [x[is_real] for x in outputs]
        return sum(ops.sum(ops.square(x)) for x in outputs), outputs

    LAYERS[name](**arguments)  # builds it
    (_, outputs), found = gradients(loss, LAYERS[name].trainable_weights)
    return outputs, found


@pytest.mark.parametrize("value", [np.nan, 3e38])
@pytest.mark.parametrize("name,mask,shape", MASKS)
def test_what_is_masked_has_no_influence(name, mask, shape, value):
    """Key 1 of row 1 is masked, by a mask of pairs for query 0 only."""
    is_pair, key = len(shape) == 3, (1, 1)
    booleans = np.ones(shape, bool)
    booleans[(1, 0, 1) if is_pair else key] = False
    is_real = np.ones((B, T), bool)
    is_real[(1, slice(1, T)) if is_pair else key] = False
    content = "content" if name == "two_stream" else "query"
    hides = content if shape[-1] == T else "memory"
    results = []
    for masked in (0.5, value):
        states = {content: QUERY.copy(), "memory": MEMORY.copy()}
        states[hides][key] = masked
        if name == "two_stream":
            states["query"] = QUERY[::-1].copy()
            states["query"][key] = states["content"][key]
        results.append(
            call_and_gradients(name, is_real, **states, **{mask: booleans})
        )
    (expected, expected_gradients), (outputs, gradients) = results
    assert_same(outputs, expected, atol=1e-6)
    # Those who attend to it have NaN in their gradients, and a projection of
    # the largest number overflows.
    if not is_pair and value != 3e38:
        assert_same(gradients, expected_gradients, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_an_overflow_of_a_value_is_seen_by_those_who_attend_to_it(name):
    """Not only in its key, so that it is noticed."""
    layer = type(LAYERS[name]).from_config(LAYERS[name].get_config())
    arguments = {"memory": MEMORY, "attention_mask": np.ones((B, T, S), bool)}
    if name == "two_stream":
        mask = np.ones((B, T, T), bool)
        arguments = {"memory": MEMORY, "query": QUERY, "permutation_mask": mask}
    layer(QUERY, **arguments)
    (kernel,) = (x for x in layer.weights if x.path.endswith("value/kernel"))
    kernel.assign(np.sign(kernel) * 3e38)
    for output in keras.tree.flatten(layer(QUERY, **arguments)):
        assert np.isnan(output).all()


@pytest.mark.parametrize("name", LAYERS)
def test_a_memory_of_another_shape_or_none_for_its_mask_is_an_error(name):
    with pytest.raises(ValueError, match="`memory` must .* `memory_mask`"):
        LAYERS[name](QUERY, memory_mask=np.ones((B, M), bool))
    for shape in ((B + 1, M, D), (B, M, D + 1), (B, D), (1, M, D)):
        with pytest.raises(ValueError, match="`memory` must have the shape"):
            LAYERS[name](QUERY, memory=np.ones(shape, "float32"))


@pytest.mark.parametrize(
    "name,rows", [("relative", S), ("two_stream", S + T - 1)]
)
def test_positions_must_be_one_per_distance(name, rows):
    for shape in ((rows - 1, D), (rows + 1, D), (rows, D + 2), (1, rows, D)):
        with pytest.raises(ValueError, match="`position_encoding` must have"):
            encoding = np.ones(shape, "float32")
            LAYERS[name](QUERY, memory=MEMORY, position_encoding=encoding)


def test_seeds_that_are_no_integer_a_row_are_an_error():
    layer = RelativeMultiHeadAttention(N, H, dropout=0.5)
    for seed in (1.5, [1.5] * B, 3, [1] * (B + 1), [[1]] * B):
        with pytest.raises(ValueError, match="`dropout_seed` must"):
            layer(QUERY, training=True, dropout_seed=seed)
