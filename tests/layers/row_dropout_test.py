"""Masks that depend on the seed of their row and on nothing else."""

import itertools

import numpy as np
import pytest
from backends import compiled
from backends import gradients
from keras import ops
from layer_checks import check_layer

from txl_keras.backend import tf
from txl_keras.layers import RowDropout
from txl_keras.layers.compute.dropout import fold_in

pytestmark = pytest.mark.every_backend


def kept(rate, seeds, *shape):
    """Boolean `(B, *shape)`, true where a unit is kept."""
    x = ops.ones((len(seeds), *shape))
    seeds = ops.array(seeds, "uint32")
    dropped = RowDropout(rate)(x, training=True, dropout_seed=seeds)
    return np.array(dropped) > 0


def correlation(a, b):
    return np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1]


def test_kept_units_are_scaled_and_dropped_ones_get_no_gradient():
    def call(x):
        seeds = ops.array([1, 2], "uint32")
        y = RowDropout(0.2)(x, training=True, dropout_seed=seeds)
        return ops.sum(y), y

    (_, y), (found,) = gradients(call, [], np.full((2, 50), 3, "float32"))
    np.testing.assert_allclose(np.unique(y), [0, 3.75], rtol=1e-6)
    np.testing.assert_array_equal(found, np.array(y) / 3)


def test_keras_layer(tmp_path):
    check_layer(
        RowDropout,
        {"rate": 0.3, "seed": 4},
        {"inputs": np.arange(30, dtype="float32").reshape(2, 3, 5)},
        num_weights=0,
        folder=tmp_path,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_xla_drops_the_same_units(dtype):
    layer = RowDropout(0.4, dtype=dtype)
    x = ops.ones((3, 5, 7), dtype)
    seeds = ops.array([0, 7, 2**32 - 1], "uint32")

    def call(x, seeds):
        return layer(x, training=True, dropout_seed=seeds)

    expected = np.array(ops.cast(call(x, seeds), "float32"))
    for jit_compile in (False, True):
        got = compiled(call, jit_compile=jit_compile)(x, seeds)
        np.testing.assert_array_equal(ops.cast(got, "float32"), expected)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_rate_is_the_fraction_dropped(rate):
    mask = kept(rate, range(50), 4000)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(1 - mask.mean() - rate) < 4 * deviation / np.sqrt(200_000)
    # In each row, and in each unit over the rows, too.
    by_row, by_unit = 1 - mask.mean(1), 1 - mask.mean(0)
    assert np.abs(by_row - rate).max() < 5 * deviation / np.sqrt(4000)
    assert np.abs(by_unit - rate).max() < 5.5 * deviation / np.sqrt(50)
    # As spread as draws that do not know of each other.
    assert 0.9 < by_unit.std() * np.sqrt(50) / deviation < 1.1


@pytest.mark.parametrize("distance", [1, 2, 3, 8, 64, 512, 65536])
def test_neighbouring_units_and_seeds_are_not_correlated(distance):
    # 4 * 2^17 pairs: a correlation of 0.0014 is one standard deviation.
    units = 2**17
    mask = kept(0.5, [3, 4, 1000, 2**31], units).astype(float)
    shifted = correlation(mask[:, distance:], mask[:, :-distance])
    assert abs(shifted) < 0.007
    others = [3 + distance, 4 + distance, 1000 + distance, 2**31 + distance]
    assert abs(correlation(mask, kept(0.5, others, units))) < 0.007


def test_folding_gives_every_number_its_own_seed():
    seeds = np.array(fold_in(ops.array(5, "uint32"), ops.arange(100_000)))
    assert len(set(seeds.tolist())) == 100_000
    # Bits are as often set as not.
    bits = (seeds[:, None] >> np.arange(32, dtype=seeds.dtype)) & 1
    assert np.abs(bits.mean(0) - 0.5).max() < 0.01
    assert fold_in(None, 3) is None


@pytest.mark.tensorflow
def test_seeds_are_drawn_anew_at_each_call():
    x = ops.ones((2, 400))
    one, same = RowDropout(0.5, seed=6), RowDropout(0.5, seed=6)
    run = tf.function(lambda x: one(x, training=True), jit_compile=True)
    first = one(x, training=True).numpy()
    others = one(x, training=True), run(x), run(x)
    drawn = [first, *(x.numpy() for x in others)]
    for before, after in itertools.pairwise(drawn):
        assert 0.3 < (before != after).mean() < 0.7
    assert 0.3 < (first[0] != first[1]).mean() < 0.7
    np.testing.assert_array_equal(same(x, training=True), first)
