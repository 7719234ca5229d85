import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import small_model

from txl_keras import optimizers
from txl_keras.training import schedules
from txl_keras.training.updates import LossScale
from txl_keras.training.updates import apply_gradients
from txl_keras.training.updates import takes_weight_decay

SHAPES = {"kernel": (3, 4), "gamma": (5,), "bias": (2, 6)}
SETTINGS = {
    "adam": {"beta_2": 0.98},
    "adamw": {"weight_decay": 0.3, "epsilon": 1e-4},
    "lamb": {"weight_decay": 0.3, "beta_1": 0.8},
    "muon": {"weight_decay": 0.3, "momentum": 0.6},
    "sgd": {"momentum": 0.7},
}


def random_weights():
    rng = np.random.default_rng(3)
    return [
        keras.Variable(rng.normal(size=shape), dtype="float32", name=name)
        for name, shape in SHAPES.items()
    ]


def random_gradients(num_steps=3):
    rng = np.random.default_rng(8)
    return [
        [rng.normal(size=shape).astype("float32") for shape in SHAPES.values()]
        for _ in range(num_steps)
    ]


def built(name, weights, learning_rate=0.1, **settings):
    optimizer = optimizers.build_optimizer(name, learning_rate, **settings)
    optimizer.build(weights)
    return optimizer


def apply(optimizer, gradients, weights):
    """One update as the trainer makes it."""
    gradients = [tf.constant(gradient) for gradient in gradients]
    apply_gradients(optimizer, gradients, weights)
    optimizer.iterations.assign_add(1)


def values_of(weights):
    return [weight.numpy() for weight in weights]


# The references: (weights, gradients, slots, step, is decayed) -> weights.


def adamw_reference(w, g, slots, step, decayed):
    m = slots["m"] = 0.9 * slots["m"] + 0.1 * g
    v = slots["v"] = 0.999 * slots["v"] + 0.001 * g**2
    w = w - 0.1 * 0.3 * decayed * w
    rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return w - rate * m / (np.sqrt(v) + 1e-4)


def lamb_reference(w, g, slots, step, decayed):
    m = slots["m"] = 0.8 * slots["m"] + 0.2 * g
    v = slots["v"] = 0.999 * slots["v"] + 0.001 * g**2
    u = m / (np.sqrt(v) + 1e-6) + 0.3 * decayed * w
    return w - 0.1 * np.linalg.norm(w) / np.linalg.norm(u) * u


def muon_reference(w, g, slots, step, decayed):
    w = w - 0.1 * 0.3 * decayed * w
    if not decayed:  # no kernel
        m = slots["m"] = 0.9 * slots["m"] + 0.1 * g
        v = slots["v"] = 0.999 * slots["v"] + 0.001 * g**2
        m, v = m / (1 - 0.9**step), v / (1 - 0.999**step)
        return w - 0.1 * m / np.sqrt(v)
    m = slots["m"] = 0.6 * slots["m"] + g
    x = 0.6 * m + g
    x /= np.linalg.norm(x)
    for _ in range(5):
        xx = x @ x.T
        x = 3.4445 * x + (-4.775 * xx + 2.0315 * xx @ xx) @ x
    return w - 0.1 * 0.2 * np.sqrt(max(x.shape)) * x


# Of those that are ours, or decay weights in our way.
REFERENCES = {
    "adamw": adamw_reference,
    "lamb": lamb_reference,
    "muon": muon_reference,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_three_steps_are_those_of_the_formulas(name):
    weights = random_weights()
    optimizer = built(name, weights, **SETTINGS[name])
    expected = [value.astype("float64") for value in values_of(weights)]
    slots = [{"m": 0.0, "v": 0.0} for _ in weights]
    for step, gradients in enumerate(random_gradients(), 1):
        apply(optimizer, gradients, weights)
        expected = [
            REFERENCES[name](w, g.astype("float64"), of_weight, step, decayed)
            for w, g, of_weight, decayed in zip(
                expected, gradients, slots, [1, 0, 0], strict=True
            )
        ]
        assert_same(weights, expected, atol=3e-6)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_rate_is_that_of_the_updates_made(name):
    rate = schedules.build_schedule("linear", 0.1, 9, warmup_steps=4)
    weights = random_weights()
    optimizer = built(name, weights, rate, **SETTINGS[name])
    before = values_of(weights)
    first, second = random_gradients(2)
    apply(optimizer, first, weights)
    # The warm-up begins at 0.
    assert_same(weights, before)
    apply(optimizer, second, weights)
    for a, b in zip(values_of(weights), before, strict=True):
        assert (a != b).all()


# The moments are 0.1 g and 0.001 g^2.
STEP = 0.1 * 0.1 / np.sqrt(0.001)


@pytest.mark.parametrize(
    ("weights", "gradient", "expected"),
    [
        # The norm is bounded: the rate times 10, not times 50.
        ([30.0, 40.0], [2.0, 0.0], [29.0, 40.0]),
        # For zeros the ratio is 1.
        ([0.0, 0.0, 0.0], [0.5, -3.0, 0.0], [-STEP, STEP, 0.0]),
    ],
)
def test_the_ratio_of_lamb_at_its_limits(weights, gradient, expected):
    weight = keras.Variable(weights)
    optimizer = built("lamb", [weight])
    apply(optimizer, [np.array(gradient, "float32")], [weight])
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_first_step_moves_even_where_gradients_are_tiny(name):
    weight = keras.Variable([1.0, 1.0])
    apply(built(name, [weight]), [np.array([1e-6, -3.0], "float32")], [weight])
    # These move by the learning rate in their first step.
    np.testing.assert_allclose(weight.numpy(), [0.9, 1.1], atol=4e-3)


NOT_DECAYED = {
    "gamma",
    "beta",
    "bias",
    "bias_0",
    "bias_1",
    "bias_2",
    "cluster_bias",
    "content_attention_bias",
    "positional_attention_bias",
    "position_biases",
}


def test_biases_and_norms_of_the_model_are_not_decayed():
    models = [
        small_model(
            num_layers=1, tie_embeddings=False, tie_projections=False, **config
        )
        for config in (
            {"cutoffs": (4, 7), "div_val": 2},
            {"tie_attention_biases": False, "normalize_output": True},
            {"attention_type": "shaw", "max_positions": 9},
        )
    ]
    weights = sum((model.trainable_variables for model in models), [])
    found = {w.name for w in weights if not takes_weight_decay(w)}
    assert found == NOT_DECAYED
    kernels = {"kernel", "embeddings_0", "projection_1", "position_keys"}
    assert kernels <= {weight.name for weight in weights} - found


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_optimizers_round_trip_through_their_config(name):
    rate = schedules.build_schedule("linear", 0.3, 20, warmup_steps=4)
    optimizer = optimizers.build_optimizer(name, rate, **SETTINGS[name])
    content = keras.saving.serialize_keras_object(optimizer)
    revived = keras.saving.deserialize_keras_object(content)
    assert type(revived) is type(optimizer)
    config = revived.get_config()
    assert config == optimizer.get_config()
    assert SETTINGS[name].items() <= config.items()
    revived.iterations.assign(5)
    assert float(revived.learning_rate) == float(rate(5))


@pytest.mark.parametrize(
    ("shape", "matrix"), [((7, 2, 3), (7, 6)), ((2, 3, 7), (6, 7))]
)
def test_muon_takes_the_kernels_of_heads_for_matrices(shape, matrix):
    gradient = np.random.default_rng(1).normal(size=shape).astype("float32")
    updates = []
    for as_shape in (shape, matrix):
        weight = keras.Variable(np.zeros(as_shape, "float32"), name="kernel")
        optimizer = built("muon", [weight])
        apply(optimizer, [gradient.reshape(as_shape)], [weight])
        updates.append(weight.numpy().reshape(matrix))
    np.testing.assert_allclose(*updates, atol=1e-6)
    # All singular values are about as large.
    values = np.linalg.svd(updates[0])[1] / (0.1 * 0.2 * np.sqrt(7))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_muon_leaves_biases_embeddings_and_softmax_to_adam():
    matrices, others = set(), set()
    model = small_model(num_layers=1, cutoffs=(4, 7), div_val=2)
    weights = model.trainable_variables
    for weight, v in zip(
        weights, built("muon", weights).adam_velocities, strict=True
    ):
        *layers, name = weight.path.split("/")
        names = matrices if v is None else others
        names.add(f"{layers[-1]}/{name}")
    kernels = ("query", "key", "value", "output", "position")
    kernels += ("feed_forward_intermediate", "feed_forward_output")
    assert matrices == {f"{name}/kernel" for name in kernels}
    assert any(name.endswith("content_attention_bias") for name in others)
    assert others >= {
        "attention_norm/gamma",
        "feed_forward_output/bias",
        "softmax/cluster_kernel",
        "token_embedding/projection_2",
    }


def test_muon_has_one_weight_decay():
    config = optimizers.Muon(weight_decay=0.2).get_config()
    copy = optimizers.Muon.from_config(config)
    assert copy.weight_decay == copy.adam_weight_decay == 0.2
    for name in ("exclude_layers", "exclude_embeddings", "adam_weight_decay"):
        with pytest.raises(TypeError, match=name):
            optimizers.Muon(**{name: None})


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_keras_itself_does_not_decay_biases_and_what_is_excluded(name):
    weights = [
        keras.Variable(np.ones((3, 2)), name="kernel"),
        keras.Variable(np.ones((3, 2)), name="kernel"),
        keras.Variable(np.ones(2), name="bias"),
    ]
    optimizer = optimizers.build_optimizer(name, 0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(weights[:1])
    optimizer.apply([keras.ops.zeros_like(w) for w in weights], weights)
    excluded, decayed, bias = (weight.numpy() for weight in weights)
    assert (decayed < 1).all()
    assert (excluded == 1).all() and (bias == 1).all()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("adam", {"beta_2": 1.0}, "`beta_2` must be below 1"),
        ("adamw", {"weight_decay": -1.0}, "weight_decay=-1.0"),
        ("muon", {"momentum": 1.5}, "momentum=1.5"),
        ("adamax", {}, r"one of \('adam', .*name='adamax'"),
        ("adam", {"weight_decay": 0.1}, "`adam` has only .*weight_decay"),
        ("sgd", {"beta_2": 0.9}, "`sgd` has only .*beta_2"),
        ("lamb", {"learning_rate": 0.0}, "learning_rate=0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizers.build_optimizer(name, **{"learning_rate": 0.1, **arguments})


def test_the_loss_scale_doubles_after_enough_good_steps_in_a_row(monkeypatch):
    monkeypatch.setattr(LossScale, "GROWTH_STEPS", 3)
    scale = LossScale()
    values = []
    for is_finite in (True, True, False, True, True, True, True, True, True):
        scale.update(tf.constant(is_finite))
        values.append(float(scale.value) / 2**15)
    assert values == [1, 1, 0.5, 0.5, 0.5, 1, 1, 1, 2]
