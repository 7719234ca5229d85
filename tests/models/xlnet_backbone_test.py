import numpy as np
import pytest
from factories import random_ids
from factories import small_backbone

from txl_keras.models import XLNetBackbone

L = 2
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
