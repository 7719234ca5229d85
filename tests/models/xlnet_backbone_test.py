import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import random_ids
from factories import small_backbone

from txl_keras.layers import Memory
from txl_keras.models import XLNetBackbone

V, D, L = 11, 8, 2
B, T, P = 4, 5, 3


def small_xlnet(dtype=None, **config):
    config = {"num_layers": L, "head_dim": 7, **config}
    return small_backbone(dtype, XLNetBackbone, **config)


def random_order():
    """Places of tokens in an order of each row, `(B, T)`."""
    rng = np.random.default_rng(1)
    return np.stack([rng.permutation(T) for _ in range(B)])


def sees_earlier(order):
    return order[:, :, None] > order[:, None, :]


def targets(order):
    """The last P tokens of each order, `(B, P, T)`."""
    last = np.argsort(order)[:, ::-1][:, :P]
    return np.eye(T, dtype="float32")[last]


def test_outputs_have_these_shapes():
    backbone = small_xlnet()
    content, memory = backbone(random_ids(B, T))
    assert content.shape == (B, T, D)
    assert [state.shape for state in memory.states] == [(B, 6, D)] * L
    assert memory.valid_length.numpy().tolist() == [T] * B
    content, query, memory = backbone(
        random_ids(B, T), target_mapping=targets(random_order()), memory=memory
    )
    assert content.shape == (B, T, D)
    assert query.shape == (B, P, D)
    assert memory.valid_length.numpy().tolist() == [6] * B


def test_memory_of_a_block_is_its_input():
    backbone = small_xlnet(memory_length=7)
    ids = random_ids(B, T)
    content, memory = backbone(ids)
    x = backbone.token_embedding.embeddings[0].numpy()[ids]
    for block, state in zip(backbone.blocks, memory.states, strict=True):
        np.testing.assert_allclose(state[:, -T:], x, atol=1e-5)
        np.testing.assert_array_equal(state[:, :-T], np.zeros((B, 2, D)))
        x = block(x).numpy()
    np.testing.assert_allclose(content, x, atol=1e-5)


def test_reuse_length_remembers_the_start_of_a_segment():
    ids = random_ids(B, T)
    whole = small_xlnet(num_layers=1)
    some = small_xlnet(num_layers=1, reuse_length=2, memory_length=3)
    some.set_weights(whole.get_weights())
    (content, all_of_it), (same, memory) = whole(ids), some(ids)
    np.testing.assert_allclose(content, same, atol=1e-6)
    for state, start in zip(memory.states, all_of_it.states, strict=True):
        # Of 6 entries the last T are the segment.
        np.testing.assert_allclose(state[:, 1:], start[:, 1:3], atol=1e-6)
    assert memory.valid_length.numpy().tolist() == [2] * B


@pytest.mark.parametrize("attention_type", ["bi", "uni"])
def test_two_segments_match_one_long_segment(attention_type):
    backbone = small_xlnet(attention_type=attention_type, clamp_length=4)
    ids, order = random_ids(B, 2 * T), random_order()
    # Memory has type 0, so the first segment has too.
    types = np.concatenate(
        [np.zeros((B, T)), random_ids(B, T) % 2], axis=1
    ).astype("int32")
    sees = sees_earlier(order)
    all_see = np.zeros((B, 2 * T, 2 * T), bool)
    # Both directions inside of a segment, but no segment sees the next.
    all_see[:, :T, :T], all_see[:, T:, T:] = True, sees
    all_see[:, T:, :T] = True
    of_last = np.concatenate([np.zeros((B, P, T)), targets(order)], axis=2)
    long, long_query, _ = backbone(
        ids,
        token_type_ids=types,
        permutation_mask=all_see,
        target_mapping=of_last,
    )
    first, memory = backbone(ids[:, :T], token_type_ids=types[:, :T])
    second, query, _ = backbone(
        ids[:, T:],
        token_type_ids=types[:, T:],
        permutation_mask=sees,
        target_mapping=targets(order),
        memory=memory,
    )
    np.testing.assert_allclose(first, long[:, :T], atol=1e-5)
    np.testing.assert_allclose(second, long[:, T:], atol=1e-5)
    np.testing.assert_allclose(query, long_query, atol=1e-5)


def test_uni_is_the_mask_of_the_order_of_the_text():
    uni = small_xlnet(num_layers=1, attention_type="uni")
    bi = small_xlnet(num_layers=1)
    bi.set_weights(uni.get_weights())
    ids = random_ids(B, T)
    causal = np.tile(np.tri(T, dtype=bool), (B, 1, 1))
    expected, _ = bi(ids, permutation_mask=causal)
    np.testing.assert_allclose(uni(ids)[0], expected, atol=1e-6)
    assert np.abs(bi(ids)[0] - expected)[:, :-1].max(-1).min() > 1e-4


def test_a_token_of_an_order_sees_what_came_before_it_alone():
    """Read token by token, the rest being padding: the same content."""
    backbone = small_xlnet()
    ids, order = random_ids(B, T), random_order()
    together, query, _ = backbone(
        ids,
        permutation_mask=sees_earlier(order),
        target_mapping=np.tile(np.eye(T), (B, 1, 1)),
    )
    for step in range(T):
        known = order <= step
        rows, tokens = np.nonzero(order == step)
        # What is not known yet cannot matter.
        content, now, _ = backbone(
            np.where(known, ids, 0),
            padding_mask=known,
            permutation_mask=sees_earlier(order),
            target_mapping=np.eye(T)[tokens[np.argsort(rows)]][:, None],
        )
        at = np.arange(B), tokens[np.argsort(rows)]
        np.testing.assert_allclose(
            np.array(content)[at], np.array(together)[at], atol=1e-5
        )
        np.testing.assert_allclose(now[:, 0], np.array(query)[at], atol=1e-5)


def test_no_target_sees_its_token_in_any_layer():
    backbone = small_xlnet()
    ids, order = random_ids(B, T), random_order()
    call = {
        "permutation_mask": sees_earlier(order),
        "target_mapping": np.tile(np.eye(T), (B, 1, 1)),
        "memory": backbone(random_ids(B, T, seed=5))[1],
    }
    content, query, _ = backbone(ids, **call)
    for t in range(T):
        changed = ids.copy()
        changed[:, t] = (ids[:, t] + 1) % V
        after, after_query, _ = backbone(changed, **call)
        moved = np.abs(after_query - query).max(-1)
        later = order > order[:, t : t + 1]
        np.testing.assert_array_equal(moved[~later], 0)
        assert (moved[later] > 1e-4).all()
        assert (np.abs(after - content).max(-1)[:, t] > 1e-3).all()


def test_padding_is_as_if_it_were_not_there():
    backbone = small_xlnet()
    ids = random_ids(B, T + 3)
    padding_mask = np.tile(np.arange(T + 3) < T, (B, 1))
    content, _ = backbone(ids, padding_mask=padding_mask)
    expected, _ = backbone(ids[:, :T])
    np.testing.assert_allclose(content[:, :T], expected, atol=1e-5)


def test_no_gradient_flows_through_memory():
    backbone = small_xlnet(num_layers=1)
    table = backbone.token_embedding.embeddings[0]
    # Ids of the first segment are in no second one.
    first, second = random_ids(B, T) % 5, 5 + random_ids(B, T) % 6
    with tf.GradientTape() as tape:
        _, memory = backbone(first)
        content, query, _ = backbone(
            second, target_mapping=targets(random_order()), memory=memory
        )
        loss = tf.reduce_sum(content**2 * np.arange(D))
        loss += tf.reduce_sum(query**2 * np.arange(D))
    gradient = tf.convert_to_tensor(tape.gradient(loss, table.value)).numpy()
    np.testing.assert_array_equal(gradient[:5], np.zeros((5, D)))
    assert np.abs(gradient[5:]).max() > 1e-3


def test_dropout_follows_its_seed_and_the_number_of_the_row():
    backbone = small_xlnet(num_layers=1, dropout=0.4, attention_dropout=0.3)
    ids, mapping = random_ids(B, T), targets(random_order())
    seed = tf.constant(7, tf.uint32)

    def run(rows, **call):
        return backbone(
            ids[rows], target_mapping=mapping[rows], training=True, **call
        )

    content, query, _ = run(slice(None), dropout_seed=seed)
    exact, _ = backbone(ids)
    assert np.abs(content - exact).max() > 1e-2
    some = slice(1, 3)
    part, of_part, _ = run(some, dropout_seed=seed, first_row=1)
    np.testing.assert_allclose(part, content[some], atol=1e-5)
    np.testing.assert_allclose(of_part, query[some], atol=1e-5)
    assert np.abs(run(some)[0] - content[some]).max() > 1e-2


def test_works_with_symbolic_inputs():
    backbone = small_xlnet(num_layers=1)
    ids = keras.Input((None,), dtype="int32")
    sees = keras.Input((None, None), dtype="bool")
    mapping = keras.Input((None, None))
    content, query, memory = backbone(
        ids, permutation_mask=sees, target_mapping=mapping
    )
    assert content.shape == (None, None, D)
    assert query.shape == (None, None, D)
    model = keras.Model(
        [ids, sees, mapping], [content, query, memory.states[0]]
    )
    order = random_order()
    inputs = random_ids(B, T), sees_earlier(order), targets(order)
    expected = backbone(
        inputs[0], permutation_mask=inputs[1], target_mapping=inputs[2]
    )
    content, query, state = model(list(inputs))
    np.testing.assert_allclose(content, expected[0], atol=1e-6)
    np.testing.assert_allclose(query, expected[1], atol=1e-6)
    np.testing.assert_allclose(state, expected[2].states[0], atol=1e-6)


def test_compiled_by_xla_is_the_same():
    backbone = small_xlnet(num_layers=1)
    ids, order = random_ids(B, T), random_order()
    call = {
        "permutation_mask": tf.constant(sees_earlier(order)),
        "target_mapping": tf.constant(targets(order)),
        "memory": backbone(random_ids(B, T, seed=5))[1],
    }
    compiled = tf.function(
        lambda ids, call: backbone(ids, **call)[1], jit_compile=True
    )
    np.testing.assert_allclose(
        compiled(tf.constant(ids), call), backbone(ids, **call)[1], atol=1e-5
    )


def test_low_precision_is_near():
    exact, low = small_xlnet(), small_xlnet("mixed_bfloat16")
    low.set_weights(exact.get_weights())
    assert {w.dtype for w in low.weights} == {"float32"}
    ids, order = random_ids(B, 2 * T), random_order()
    results = []
    for backbone in (exact, low):
        _, memory = backbone(ids[:, :T])
        content, query, memory = backbone(
            ids[:, T:],
            token_type_ids=ids[:, T:] % 2,
            permutation_mask=sees_earlier(order),
            target_mapping=targets(order),
            memory=memory,
        )
        for x in (content, query, memory.states[1]):
            assert x.dtype == backbone.compute_dtype
        results.append([np.array(x, "float32") for x in (content, query)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=0.1)


def test_config_and_weights_are_saved(tmp_path):
    config = {
        "vocabulary_size": 13,
        "num_layers": 2,
        "num_heads": 3,
        "hidden_dim": 10,
        "intermediate_dim": 7,
        "head_dim": 4,
        "memory_length": 5,
        "reuse_length": 3,
        "attention_type": "uni",
        "dropout": 0.1,
        "attention_dropout": 0.2,
        "clamp_length": 6,
        "layer_norm_epsilon": 1e-6,
        "initializer_stddev": 0.5,
    }
    backbone = small_xlnet(**config)
    stored = backbone.get_config()
    assert {name: stored[name] for name in config} == config
    backbone.save(tmp_path / "backbone.keras")
    loaded = keras.saving.load_model(tmp_path / "backbone.keras")
    assert loaded.get_config() == stored
    call = {"token_type_ids": random_ids(B, T) % 2}
    call["target_mapping"] = targets(random_order())
    ids = random_ids(B, T)
    for one, other in zip(
        loaded(ids, **call)[:2], backbone(ids, **call)[:2], strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"attention_type": "both"}, r"\('bi', 'uni'\).*'both'"),
        ({"hidden_dim": 9}, "must be even.*hidden_dim=9"),
        ({"num_heads": 3, "head_dim": None}, "hidden_dim=8, num_heads=3"),
        ({"vocabulary_size": 0}, "vocabulary_size=0"),
        ({"memory_length": -1}, "memory_length=-1"),
        ({"reuse_length": 0}, "reuse_length=0"),
        ({"intermediate_dim": 2.5}, "intermediate_dim=2.5"),
    ],
)
def test_what_makes_no_model_is_an_error(config, message):
    with pytest.raises(ValueError, match=message):
        small_xlnet(**config)


def test_head_dim_is_by_default_a_head_s_share():
    assert small_xlnet(num_heads=4, head_dim=None).head_dim == 2


@pytest.mark.parametrize(
    "name, shape",
    [
        ("token_type_ids", (B, T + 1)),
        ("padding_mask", (B, 1)),
        ("permutation_mask", (B, T)),
        ("permutation_mask", (B, T, T + 1)),
        ("target_mapping", (B, T, P)),
        ("target_mapping", (B + 1, P, T)),
    ],
)
def test_inputs_of_a_wrong_shape_are_an_error(name, shape):
    call = {name: np.ones(shape, "int32")}
    with pytest.raises(ValueError, match=f"`{name}`.*{name}.shape="):
        small_xlnet(num_layers=1)(random_ids(B, T), **call)


@pytest.mark.parametrize(
    "memory, message",
    [
        ([tf.zeros((B, 6, D))], "`memory` must be a Memory"),
        (Memory((tf.zeros((B, 6, D)),) * 3, tf.fill([B], 6)), "3 states"),
        (Memory((tf.zeros((B, 6, 9)),) * L, tf.fill([B], 6)), "6, 9"),
        (Memory((tf.zeros((1, 6, D)),) * L, tf.fill([B], 6)), "1, 6"),
    ],
)
def test_memory_of_another_model_is_an_error(memory, message):
    with pytest.raises(ValueError, match=message):
        small_xlnet()(random_ids(B, T), memory=memory)


def test_ids_outside_of_the_vocabulary_are_an_error():
    with pytest.raises(ValueError, match="token_ids"):
        small_xlnet(num_layers=1)(np.full((B, T), V))
