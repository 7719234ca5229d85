"""Embeddings in clusters against one row at a time, in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_checks import check_layer

from txl_keras.layers import AdaptiveEmbedding

V, D = 23, 6
CUTOFFS = (5, 12)
# Config, and the shape of every weight it makes.
LAYOUTS = {
    "ordinary": ({}, {"embeddings_0": (23, 6)}),
    "ordinary_projected": (
        {"embedding_dim": 10},
        {"embeddings_0": (23, 10), "projection_0": (10, 6)},
    ),
    "one_size": (
        {"cutoffs": CUTOFFS},
        {
            "embeddings_0": (5, 6),
            "embeddings_1": (7, 6),
            "embeddings_2": (11, 6),
        },
    ),
    "one_size_projected": (
        {"cutoffs": CUTOFFS, "embedding_dim": 10},
        {
            "embeddings_0": (5, 10),
            "embeddings_1": (7, 10),
            "embeddings_2": (11, 10),
            "projection_0": (10, 6),
        },
    ),
    "half_each": (
        {"cutoffs": CUTOFFS, "div_val": 2},
        {
            "embeddings_0": (5, 6),
            "embeddings_1": (7, 3),
            "embeddings_2": (11, 1),
            "projection_0": (6, 6),
            "projection_1": (3, 6),
            "projection_2": (1, 6),
        },
    ),
    "half_each_same_dim_as_it_is": (
        {"cutoffs": CUTOFFS, "div_val": 2, "project_same_dim": False},
        {
            "embeddings_0": (5, 6),
            "embeddings_1": (7, 3),
            "embeddings_2": (11, 1),
            "projection_1": (3, 6),
            "projection_2": (1, 6),
        },
    ),
    "second_has_the_size": (
        {
            "cutoffs": CUTOFFS,
            "embedding_dim": 13,
            "div_val": 2,
            "project_same_dim": False,
        },
        {
            "embeddings_0": (5, 13),
            "embeddings_1": (7, 6),
            "embeddings_2": (11, 3),
            "projection_0": (13, 6),
            "projection_2": (3, 6),
        },
    ),
    "a_quarter_each": (
        {"cutoffs": CUTOFFS, "embedding_dim": 34, "div_val": 4},
        {
            "embeddings_0": (5, 34),
            "embeddings_1": (7, 8),
            "embeddings_2": (11, 2),
            "projection_0": (34, 6),
            "projection_1": (8, 6),
            "projection_2": (2, 6),
        },
    ),
    "nothing_left_for_the_last": (
        {"cutoffs": CUTOFFS, "div_val": 4},
        {
            "embeddings_0": (5, 6),
            "embeddings_1": (7, 1),
            "embeddings_2": (11, 0),
            "projection_0": (6, 6),
            "projection_1": (1, 6),
            "projection_2": (0, 6),
        },
    ),
    "one_table_of_a_div_val": (
        {"div_val": 2},
        {"embeddings_0": (23, 6), "projection_0": (6, 6)},
    ),
}


def embedding_of(dtype=None, **config):
    """A layer of random weights."""
    layer = AdaptiveEmbedding(V, D, dtype=dtype, **config)
    layer.build((None, None))
    rng = np.random.default_rng(2)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def by_name(layer):
    return {w.name: w.numpy().astype("float64") for w in layer.weights}


def place(cutoffs, token):
    """Cluster of an id, and its row there."""
    bounds = [0, *cutoffs]
    cluster = max(i for i, bound in enumerate(bounds) if token >= bound)
    return cluster, token - bounds[cluster]


def projection_name(config, cluster):
    return f"projection_{cluster if config.get('div_val', 1) > 1 else 0}"


def reference(layer, config, token_ids):
    w = by_name(layer)
    out = np.zeros((*token_ids.shape, D))
    for index, token in np.ndenumerate(token_ids):
        cluster, row = place(config.get("cutoffs", ()), token)
        x = w[f"embeddings_{cluster}"][row]
        projection = w.get(projection_name(config, cluster))
        out[index] = x if projection is None else x @ projection
    return out


def reference_gradients(layer, config, token_ids, upstream):
    w = by_name(layer)
    gradients = {name: np.zeros(value.shape) for name, value in w.items()}
    for index, token in np.ndenumerate(token_ids):
        cluster, row = place(config.get("cutoffs", ()), token)
        table, g = f"embeddings_{cluster}", upstream[index]
        name = projection_name(config, cluster)
        if name in w:
            gradients[name] += np.outer(w[table][row], g)
            g = w[name] @ g
        gradients[table][row] += g
    return gradients


def all_ids():
    """Every id once, in no order, and a few again."""
    rng = np.random.default_rng(3)
    ids = np.concatenate([rng.permutation(V), [4, 5, 11, 12, 22]])
    return ids.astype("int32").reshape(4, 7)


@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_numpy(name):
    config, shapes = LAYOUTS[name]
    layer = embedding_of(**config)
    assert {w.name: tuple(w.shape) for w in layer.weights} == shapes
    ids = all_ids()
    expected = reference(layer, config, ids)
    np.testing.assert_allclose(layer(ids), expected, atol=1e-5)
    compiled = tf.function(layer)
    np.testing.assert_allclose(compiled(tf.constant(ids)), expected, atol=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_equal_numpy_and_touch_only_rows_used(name):
    config, _ = LAYOUTS[name]
    layer = embedding_of(**config)
    # Nothing of the second cluster; 3 twice.
    ids = np.array([[3, 17, 0], [22, 3, 12]])
    upstream = np.random.default_rng(4).normal(size=(2, 3, D))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids) * tf.cast(upstream, tf.float32))
    gradients = tape.gradient(loss, layer.trainable_variables)
    expected = reference_gradients(layer, config, ids, upstream)
    assert len(expected) == len(gradients)
    for weight, gradient in zip(layer.weights, gradients, strict=True):
        gradient = tf.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(
            gradient, expected[weight.name], atol=1e-5, err_msg=weight.name
        )
        if weight.name.startswith("embeddings"):
            np.testing.assert_array_equal(
                gradient[expected[weight.name].any(-1) == 0], 0
            )


def test_words_of_a_table_without_columns_are_zeros():
    config, _ = LAYOUTS["nothing_left_for_the_last"]
    x = embedding_of(**config)(np.array([11, 12, 22]))
    assert np.abs(x[0]).max() > 0.1
    np.testing.assert_array_equal(x[1:], np.zeros((2, D)))


@pytest.mark.parametrize("dtype", ["int32", "int64", "int16", "uint8"])
def test_ids_of_any_rank_and_integer_dtype(dtype):
    layer = embedding_of(cutoffs=CUTOFFS, div_val=2)
    flat = all_ids().ravel()[:12]
    expected = np.array(layer(flat))
    for shape in ((12,), (3, 4), (3, 1, 2, 2)):
        x = layer(flat.reshape(shape).astype(dtype))
        np.testing.assert_allclose(x, expected.reshape(*shape, D), atol=1e-6)
    np.testing.assert_allclose(
        layer(tf.constant(7, dtype)), layer(np.array([7]))[0], atol=1e-6
    )
    assert layer(np.zeros((2, 0), dtype)).shape == (2, 0, D)


@pytest.mark.parametrize("bad", [-1, V, -(2**31), 2**31 - 1])
def test_eager_ids_outside_the_vocabulary_are_an_error(bad):
    layer = embedding_of(cutoffs=CUTOFFS)
    for ids in (np.array([[0, bad]]), tf.constant([[0, bad]])):
        low, high = min(0, bad), max(0, bad)
        with pytest.raises(
            ValueError, match=rf"integers in \[0, {V}\).* from {low} to {high}"
        ):
            layer(ids)


@pytest.mark.parametrize("bad", [-1, V, 2**31 - 1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_ids_outside_the_vocabulary_are_an_error_in_a_graph(bad, dtype):
    layer = embedding_of(cutoffs=CUTOFFS)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"`token_ids` must hold integers in \[0, {V}\)",
    ):
        tf.function(layer)(tf.constant([[0, bad]], dtype))


@pytest.mark.parametrize(
    "ids", [[[1.5, 2]], [[1.0, 2]], [[1j]], [[True]], [[np.nan]]]
)
def test_ids_that_are_no_integers_are_an_error(ids):
    layer = embedding_of(cutoffs=CUTOFFS)
    with pytest.raises(ValueError, match="`token_ids` must hold integers"):
        layer(np.array(ids))
    with pytest.raises(ValueError, match="`token_ids` must hold integers"):
        tf.function(layer)(tf.constant(ids))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_ids_outside_the_vocabulary_are_nan_by_xla_and_no_others(dtype):
    for name in ("ordinary", "half_each"):
        config, _ = LAYOUTS[name]
        layer = embedding_of(**config)
        ids = all_ids().astype(dtype)
        expected = reference(layer, config, ids)
        for where, bad in {
            (0, 0): -1,
            (0, 3): V,
            (2, 6): np.iinfo(dtype).min,
            (3, 1): np.iinfo(dtype).max,
        }.items():
            ids[where] = bad
            expected[where] = np.nan
        compiled = tf.function(layer, jit_compile=True)
        # Equal where it is a number, and NaN at the same places.
        np.testing.assert_allclose(
            compiled(tf.constant(ids)), expected, atol=1e-5
        )


def test_gradients_of_a_batch_with_an_unknown_id_are_those_of_the_others():
    layer = embedding_of(cutoffs=CUTOFFS, div_val=2)

    @tf.function(jit_compile=True)
    def gradients(ids, weights):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) * weights[:, None])
        return [
            tf.convert_to_tensor(g)
            for g in tape.gradient(loss, layer.trainable_variables)
        ]

    weights = tf.constant([1.0, 2, 3])
    for bad in (-4, V):
        for result, expected in zip(
            gradients(tf.constant([3, bad, 20]), weights),
            gradients(tf.constant([3, 20]), weights[::2]),
            strict=True,
        ):
            np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize(
    "cutoffs",
    [(12, 5), (5, 5), (0,), (V,), (5, V + 1), (-3,), (5.0,), (True, 5), ("5",)],
)
def test_cutoffs_must_be_increasing_integers_inside_the_vocabulary(cutoffs):
    with pytest.raises(ValueError, match="`cutoffs` must be .*Received: cuto"):
        AdaptiveEmbedding(V, D, cutoffs=cutoffs)


@pytest.mark.parametrize(
    "config",
    [
        {"input_dim": 0},
        {"output_dim": 2.0},
        {"embedding_dim": 0},
        {"embedding_dim": True},
        {"div_val": 0},
        {"div_val": 2.0},
    ],
)
def test_sizes_must_be_positive_integers(config):
    (name,) = config
    with pytest.raises(ValueError, match=f"`{name}` must be an integer of at"):
        AdaptiveEmbedding(**{"input_dim": V, "output_dim": D, **config})


def test_numpy_integers_are_integers():
    layer = AdaptiveEmbedding(
        np.int64(V), np.int32(D), cutoffs=np.array(CUTOFFS), div_val=np.int8(2)
    )
    assert layer.cutoffs == CUTOFFS
    config = keras.saving.serialize_keras_object(layer)
    revived = keras.saving.deserialize_keras_object(config)
    assert revived.get_config() == layer.get_config()


@pytest.mark.parametrize("with_cutoffs", [True, False])
def test_keras_layer(tmp_path, with_cutoffs):
    config = {"embedding_dim": 9, "project_same_dim": False}
    if with_cutoffs:
        config.update({"cutoffs": list(CUTOFFS), "div_val": 2})
    check_layer(
        AdaptiveEmbedding,
        {"input_dim": V, "output_dim": D, **config},
        {"token_ids": all_ids()},
        num_weights=6 if with_cutoffs else 2,
        folder=tmp_path,
        batch_outputs=False,
    )


def test_initializers_come_back_from_the_config():
    layer = AdaptiveEmbedding(
        V,
        D,
        cutoffs=CUTOFFS,
        div_val=2,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.5),
        projection_initializer=keras.initializers.Constant(0.25),
    )
    revived = AdaptiveEmbedding.from_config(layer.get_config())
    for one in (layer, revived):
        one.build()
        w = by_name(one)
        assert 0.3 < w["embeddings_2"].std() < 0.8
        np.testing.assert_array_equal(w["projection_1"], np.full((3, D), 0.25))
        # One initializer object would give the same numbers each time.
        assert np.abs(w["embeddings_0"][:, 0] - w["embeddings_1"][:5, 0]).any()


def test_bfloat16_comes_out_while_tables_stay_float32():
    config, _ = LAYOUTS["half_each"]
    layer = embedding_of("mixed_bfloat16", **config)
    assert {w.dtype for w in layer.weights} == {"float32"}
    ids = all_ids()
    x = layer(ids)
    assert x.dtype == "bfloat16"
    expected = reference(layer, config, ids)
    np.testing.assert_allclose(
        np.array(x, "float32"), expected, atol=0.02 * np.abs(expected).max()
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids))
    for gradient in tape.gradient(loss, layer.trainable_variables):
        assert gradient.dtype == "float32"


def test_a_saved_model_goes_on_learning(tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    layer = AdaptiveEmbedding(V, D, cutoffs=CUTOFFS, div_val=2)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    ids, y = all_ids(), np.random.default_rng(5).normal(size=(4, 7, 1))
    np.testing.assert_allclose(loaded(ids), model(ids), atol=1e-6)
    losses = loaded.fit(ids, y, epochs=9, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]
