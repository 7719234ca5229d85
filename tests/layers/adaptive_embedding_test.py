"""Embeddings in clusters against one table of all ids."""

import numpy as np
import pytest
from backends import compiled
from backends import drops_checks
from backends import gradients
from factories import assert_same
from keras import ops
from layer_checks import check_layer

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.layers import AdaptiveEmbedding

pytestmark = pytest.mark.every_backend

V, D = 23, 6
CUTOFFS = (5, 12)
HALF = {"cutoffs": CUTOFFS, "div_val": 2}
# Config, columns of the table of each cluster, and which have a projection.
LAYOUTS = {
    "ordinary": ({}, [6], []),
    "ordinary_projected": ({"embedding_dim": 10}, [10], [0]),
    "one_size": ({"cutoffs": CUTOFFS}, [6, 6, 6], []),
    "one_size_projected": (
        {"cutoffs": CUTOFFS, "embedding_dim": 10},
        [10, 10, 10],
        [0],
    ),
    "half_each": (HALF, [6, 3, 1], [0, 1, 2]),
    "second_has_the_size": (
        {**HALF, "embedding_dim": 13, "project_same_dim": False},
        [13, 6, 3],
        [0, 2],
    ),
    "nothing_left_for_the_last": (
        {"cutoffs": CUTOFFS, "div_val": 4},
        [6, 1, 0],
        [0, 1, 2],
    ),
    "one_table_of_a_div_val": ({"div_val": 2}, [6], [0]),
}


def shapes_of(name):
    """Shapes of all weights of a layout, by their names."""
    config, columns, projected = LAYOUTS[name]
    rows = np.diff([0, *config.get("cutoffs", ()), V])
    tables = {
        f"embeddings_{i}": shape
        for i, shape in enumerate(zip(rows, columns, strict=True))
    }
    return tables | {f"projection_{i}": (columns[i], D) for i in projected}


def embedding_of(dtype=None, **config):
    """A layer of random weights."""
    layer = AdaptiveEmbedding(V, D, dtype=dtype, **config)
    layer.build((None, None))
    rng = np.random.default_rng(2)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def by_name(layer):
    return {w.name: w.value for w in layer.weights}


def table_of(layer):
    """The embeddings of all ids, `(V, D)`, from the weights."""
    w, clusters = by_name(layer), []
    for i in range(len(layer.cutoffs) + 1):
        projection = w.get(f"projection_{i if layer.div_val > 1 else 0}")
        table = w[f"embeddings_{i}"]
        clusters.append(table if projection is None else table @ projection)
    return ops.concatenate(clusters, axis=0)


def reference(layer, token_ids):
    return np.array(ops.take(table_of(layer), token_ids, axis=0))


def all_ids():
    """Every id once, in no order, and a few again."""
    rng = np.random.default_rng(3)
    ids = np.concatenate([rng.permutation(V), [4, 5, 11, 12, 22]])
    return ids.astype("int32").reshape(4, 7)


@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_one_table(name):
    config, *_ = LAYOUTS[name]
    layer = embedding_of(**config)
    assert {w.name: w.shape for w in layer.weights} == shapes_of(name)
    ids = all_ids()
    expected = reference(layer, ids)
    np.testing.assert_allclose(layer(ids), expected, atol=1e-5)
    found = compiled(layer)(ops.array(ids))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # Gradients touch only rows that are used: nothing of the second cluster; 3
    # twice.
    ids = np.array([[3, 17, 0], [22, 3, 12]])
    upstream = np.random.default_rng(4).normal(size=(2, 3, D))
    upstream = ops.array(upstream, "float32")
    _, of_layer = gradients(
        lambda: ops.sum(layer(ids) * upstream), layer.weights
    )
    _, of_table = gradients(
        lambda: ops.sum(ops.take(table_of(layer), ids, axis=0) * upstream),
        layer.weights,
    )
    for weight, found, expected in zip(
        layer.weights, of_layer, of_table, strict=True
    ):
        found, expected = np.array(found), np.array(expected)
        np.testing.assert_allclose(
            found, expected, atol=1e-5, err_msg=weight.name
        )
        if weight.name.startswith("embeddings"):
            assert not found[~expected.any(-1)].any()


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_ids_of_any_rank_and_integer_dtype(dtype):
    layer = embedding_of(cutoffs=CUTOFFS, div_val=2)
    flat = all_ids().ravel()[:12]
    expected = np.array(layer(flat))
    for shape in ((12,), (3, 4), (3, 1, 2, 2)):
        x = layer(flat.reshape(shape).astype(dtype))
        np.testing.assert_allclose(x, expected.reshape(*shape, D), atol=1e-6)
    np.testing.assert_allclose(
        layer(ops.array(7, dtype)), layer(np.array([7]))[0], atol=1e-6
    )
    assert layer(np.zeros((2, 0), dtype)).shape == (2, 0, D)
    # All numbers of a byte may be ids.
    largest = np.full(3, 255).astype(dtype)
    assert np.isfinite(AdaptiveEmbedding(256, D)(largest)).all()


@drops_checks
def test_ids_outside_the_vocabulary_are_nan_by_xla_and_no_others():
    dtype = "int64" if ON_TENSORFLOW else "int32"  # JAX has no int64
    layer = embedding_of(**HALF)
    ids = all_ids().astype(dtype)
    expected = reference(layer, ids)
    limits = np.iinfo(dtype)
    bad = {(0, 0): -1, (0, 3): V, (2, 6): limits.min, (3, 1): limits.max}
    known = np.ones((*ids.shape, 1), "float32")

    def run(ids, upstream):
        def loss():
            x = layer(ids)
            return ops.sum(x * upstream), x

        return gradients(loss, layer.trainable_variables)

    for where in bad:
        expected[where], known[where] = np.nan, 0
    _, of_others = run(ops.array(ids), known)
    for where, value in bad.items():
        ids[where] = value
    run = compiled(run, jit_compile=True)
    (_, x), found = run(ops.array(ids), np.ones_like(known))
    # Equal where it is a number, and NaN at the same places.
    np.testing.assert_allclose(x, expected, atol=1e-5)
    assert_same(found, of_others, atol=1e-5)


def test_keras_layer(tmp_path):
    config = {"embedding_dim": 9, "project_same_dim": False}
    check_layer(
        AdaptiveEmbedding,
        {**config, "input_dim": V, "output_dim": D, "cutoffs": [5, 12]},
        {"token_ids": all_ids()},
        num_weights=4,
        folder=tmp_path,
        batch_outputs=False,
    )
