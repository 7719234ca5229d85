import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import D
from factories import L
from factories import V
from factories import random_ids
from factories import small_backbone

B, T = 4, 5


def test_hidden_states_and_memory_have_these_shapes():
    hidden, memory = small_backbone(memory_length=7)(random_ids(B, T))
    assert hidden.shape == (B, T, D)
    assert [state.shape for state in memory.states] == [(B, 7, D)] * L
    assert memory.valid_length.numpy().tolist() == [T] * B


def test_memory_of_a_block_is_its_input():
    backbone = small_backbone()
    ids = random_ids(B, T)
    hidden, memory = backbone(ids)
    x = backbone.token_embedding.embeddings[0].numpy()[ids] * np.sqrt(D)
    biases = (
        backbone.content_attention_bias,
        backbone.positional_attention_bias,
    )
    for block, state in zip(backbone.blocks, memory.states, strict=True):
        np.testing.assert_allclose(state[:, -T:], x, atol=1e-5)
        np.testing.assert_array_equal(state[:, :-T], np.zeros((B, 1, D)))
        x = block(x, attention_biases=biases).numpy()
    np.testing.assert_allclose(hidden, x, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"normalize_first": True},
        {"normalize_first": True, "normalize_output": True},
        {"normalize_output": True},
        {"tie_attention_biases": False},
        {"clamp_length": 3},
    ],
)
def test_two_segments_match_one_long_segment(config):
    backbone = small_backbone(num_layers=2, **config)
    ids = random_ids(B, 2 * T)
    long, _ = backbone(ids)
    first, memory = backbone(ids[:, :T])
    second, _ = backbone(ids[:, T:], memory=memory)
    np.testing.assert_allclose(first, long[:, :T], atol=1e-5)
    np.testing.assert_allclose(second, long[:, T:], atol=1e-5)


def test_normalize_output_normalizes_the_last_hidden_states():
    backbone = small_backbone(
        normalize_first=True, normalize_output=True, num_layers=1
    )
    hidden = np.array(backbone(random_ids(B, T))[0])
    np.testing.assert_allclose(hidden.mean(-1), np.zeros((B, T)), atol=1e-5)
    np.testing.assert_allclose(hidden.std(-1), np.ones((B, T)), atol=1e-3)
    raw = small_backbone(normalize_first=True, num_layers=1)
    raw.set_weights(
        [
            w.numpy()
            for w in backbone.weights
            if not w.path.split("/")[1].startswith("output_norm")
        ]
    )
    raw = np.array(raw(random_ids(B, T))[0])
    raw = (raw - raw.mean(-1, keepdims=True)) / raw.std(-1, keepdims=True)
    np.testing.assert_allclose(hidden, raw, atol=1e-2)


def test_same_length_bounds_how_far_a_token_sees():
    # One block: with M = 3, token 4 sees itself and three before it.
    backbone = small_backbone(num_layers=1, memory_length=3, same_length=True)
    ids = random_ids(B, T)
    before = np.array(backbone(ids)[0])
    ids[:, 0] = (ids[:, 0] + 1) % V
    after = np.array(backbone(ids)[0])
    np.testing.assert_allclose(after[:, 4], before[:, 4], atol=1e-6)
    assert (np.abs(after - before)[:, :4].max(-1) > 1e-3).all()


def test_a_masked_cold_start_of_any_length_is_no_memory():
    backbone = small_backbone(num_layers=2)
    ids = random_ids(B, T)
    expected, _ = backbone(ids, memory=backbone.initial_memory(B, 0))
    for memory_length in (1, 4, 13):
        memory = backbone.initial_memory(B, memory_length)
        hidden, _ = backbone(ids, memory=memory)
        np.testing.assert_allclose(hidden, expected, atol=1e-6)
    np.testing.assert_array_equal(
        backbone(ids)[0], backbone(ids, memory=backbone.initial_memory(B))[0]
    )


def test_zeros_that_are_attended_to_are_not_a_masked_cold_start():
    masked, zeros = small_backbone(), small_backbone(cold_start="zeros")
    zeros.set_weights(masked.get_weights())
    ids = random_ids(B, T)
    difference = masked(ids)[0] - zeros(ids)[0]
    assert np.abs(difference).max(-1).min() > 1e-3


def test_half_empty_memory_equals_a_shorter_one():
    backbone = small_backbone(memory_length=9)
    ids = random_ids(B, 7)
    _, half_empty = backbone(ids[:, :3])
    _, full = backbone(ids[:, :3], memory=backbone.initial_memory(B, 3))
    np.testing.assert_allclose(
        backbone(ids[:, 3:], memory=half_empty)[0],
        backbone(ids[:, 3:], memory=full)[0],
        atol=1e-5,
    )


@pytest.mark.parametrize("cold_start", ["masked", "zeros"])
def test_a_row_that_is_reset_is_as_fresh_and_leaves_the_others(cold_start):
    backbone = small_backbone(cold_start=cold_start, num_layers=2)
    ids = random_ids(B, 2 * T)
    _, memory = backbone(ids[:, :T])
    reset = np.array([False, True, True, False])
    got, after = backbone(ids[:, T:], memory=memory, reset=reset)
    going_on, its_memory = backbone(ids[:, T:], memory=memory)
    fresh, fresh_memory = backbone(ids[:, T:])
    np.testing.assert_allclose(got[reset], fresh[reset], atol=1e-5)
    np.testing.assert_allclose(got[~reset], going_on[~reset], atol=1e-5)
    assert np.abs(fresh - going_on).max(-1).min() > 1e-4
    np.testing.assert_array_equal(
        after.valid_length[reset], fresh_memory.valid_length[reset]
    )
    np.testing.assert_array_equal(
        after.valid_length[~reset], its_memory.valid_length[~reset]
    )


def test_no_gradient_flows_through_memory():
    backbone = small_backbone()
    ids = random_ids(B, 2 * T)
    table = backbone.token_embedding.embeddings[0]
    # Ids of the first segment are in no second one.
    ids[:, :T], ids[:, T:] = ids[:, :T] % 5, 5 + ids[:, T:] % 6
    with tf.GradientTape() as tape:
        _, memory = backbone(ids[:, :T])
        hidden, _ = backbone(ids[:, T:], memory=memory)
        loss = tf.reduce_sum(hidden**2 * np.arange(D))
    gradient = tf.convert_to_tensor(tape.gradient(loss, table.value)).numpy()
    np.testing.assert_array_equal(gradient[:5], np.zeros((5, D)))
    assert np.abs(gradient[5:]).max() > 1e-3


def test_works_with_symbolic_inputs():
    backbone = small_backbone()
    inputs = keras.Input((None,), dtype="int32")
    hidden, memory = backbone(inputs)
    assert hidden.shape == (None, None, D)
    model = keras.Model(inputs, [hidden, memory.states[1]])
    ids = random_ids(B, T)
    expected, expected_memory = backbone(ids)
    hidden, state = model(ids)
    np.testing.assert_allclose(hidden, expected, atol=1e-6)
    np.testing.assert_allclose(state, expected_memory.states[1], atol=1e-6)


@pytest.mark.parametrize(
    "policy,tolerance", [("mixed_bfloat16", 0.1), ("mixed_float16", 0.02)]
)
def test_low_precision_is_near(policy, tolerance):
    exact = small_backbone()
    low = small_backbone(policy)
    low.set_weights(exact.get_weights())
    assert {w.dtype for w in low.weights} == {"float32"}
    ids = random_ids(B, 2 * T)
    results = []
    for backbone in (exact, low):
        _, memory = backbone(ids[:, :T])
        hidden, memory = backbone(ids[:, T:], memory=memory)
        assert hidden.dtype == backbone.compute_dtype
        assert memory.states[2].dtype == backbone.compute_dtype
        results.append(np.array(hidden, "float32"))
    np.testing.assert_allclose(results[1], results[0], atol=tolerance)


def test_config_round_trips(tmp_path):
    config = {
        "vocabulary_size": 13,
        "num_layers": 2,
        "num_heads": 3,
        "hidden_dim": 10,
        "intermediate_dim": 7,
        "head_dim": 4,
        "memory_length": 5,
        "dropout": 0.1,
        "attention_dropout": 0.2,
        "clamp_length": 6,
        "same_length": True,
        "tie_attention_biases": False,
        "normalize_first": True,
        "normalize_output": True,
        "layer_norm_epsilon": 1e-6,
        "initializer_stddev": 0.5,
        "cold_start": "zeros",
    }
    backbone = small_backbone(**config)
    stored = backbone.get_config()
    assert {name: stored[name] for name in config} == config
    backbone.save(tmp_path / "backbone.keras")
    loaded = keras.saving.load_model(tmp_path / "backbone.keras")
    assert loaded.get_config() == stored
    ids = random_ids(B, T)
    np.testing.assert_allclose(loaded(ids)[0], backbone(ids)[0], atol=1e-6)


def test_hidden_dim_must_fit():
    with pytest.raises(ValueError, match="hidden_dim=8, num_heads=3"):
        small_backbone(num_heads=3, head_dim=None)
    with pytest.raises(ValueError, match="must be even.*hidden_dim=9"):
        small_backbone(hidden_dim=9)
    assert small_backbone(num_heads=4, head_dim=None).head_dim == 2
