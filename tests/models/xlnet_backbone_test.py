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


def test_uni_is_the_mask_of_the_order_of_the_text():
    uni = small_xlnet(num_layers=1, attention_type="uni")
    bi = small_xlnet(num_layers=1)
    bi.set_weights(uni.get_weights())
    ids = random_ids(B, T)
    causal = np.tile(np.tri(T, dtype=bool), (B, 1, 1))
    expected, _ = bi(ids, permutation_mask=causal)
    np.testing.assert_allclose(uni(ids)[0], expected, atol=1e-6)
    assert np.abs(bi(ids)[0] - expected)[:, :-1].max(-1).min() > 1e-4


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
