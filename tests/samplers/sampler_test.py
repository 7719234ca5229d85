import importlib.util

import keras
import numpy as np
import pytest
from backends import compiled
from factories import as_tensors
from keras import ops

from txl_keras import samplers
from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.samplers import BeamSampler
from txl_keras.samplers import Sampler
from txl_keras.samplers import sampler as sampler_module

pytestmark = pytest.mark.every_backend

PROBABILITIES = np.array([0.5, 0.1, 0.25, 0.05, 0.1], "float32")
DRAWS = 20_000
NAN, INFINITY = float("nan"), float("inf")
# Of every step alone, and several together.
PARAMETERS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.6},
    {"top_k": 7},
    {"top_p": 0.8},
    {"repetition_penalty": 1.4},
    {"temperature": 0.0, "repetition_penalty": 3.0},
    {"temperature": 0.8, "top_k": 9, "top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.2},
]


def seeds_of(number, size=DRAWS):
    return fold_in(ops.array(number, "uint32"), ops.arange(size))


def frequencies(sampler, probabilities=PROBABILITIES, seen=None):
    rows = [DRAWS, 1]
    log_probs = ops.tile(ops.log(probabilities)[None], rows)
    if seen is not None:
        seen = ops.tile(ops.array(seen)[None], rows)
    ids = np.array(sampler(log_probs, seeds_of(3), seen))
    assert ids.dtype == np.int32
    return np.bincount(ids, minlength=len(probabilities)) / DRAWS


def assert_close(measured, expected):
    expected = np.array(expected) / np.sum(expected)
    # Five standard deviations.
    np.testing.assert_allclose(measured, expected, atol=0.018)
    assert (measured[expected == 0] == 0).all()


def some_log_probs(batch_size=64, vocabulary_size=33):
    rng = np.random.default_rng(4)
    logits = 2 * rng.normal(size=(batch_size, vocabulary_size))
    seen = rng.random((batch_size, vocabulary_size)) < 0.3
    logits[:, 3] += 40 * seen[:, 3] - 20  # a penalty that matters
    log_probs = ops.log_softmax(ops.array(logits, "float32"))
    return log_probs, seeds_of(9, batch_size), ops.array(seen)


GREEDY = [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, PROBABILITIES**2),
        *(({"temperature": t}, GREEDY) for t in (0, 1e-300, 1e-39, 1e-30)),
        ({"top_k": 2}, [0.5, 0, 0.25, 0, 0]),
        ({"top_k": 3}, [0.5, 0.1, 0.25, 0, 0.1]),  # a tie
        ({"top_k": 99}, PROBABILITIES),
        ({"top_p": 0.4}, GREEDY),
        ({"top_p": 0.6}, [0.5, 0, 0.25, 0, 0]),
        ({"top_p": 0.8}, [0.5, 0.1, 0.25, 0, 0.1]),  # a tie
        ({"top_p": 1.0}, PROBABILITIES),
        # After temperature, and a part of what `top_k` left: 0.5 of 0.75 is
        # less than 0.7, 0.5 of 0.5 is not.
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.7}, GREEDY),
        ({"top_k": 2, "top_p": 0.65}, GREEDY),
        ({"top_k": 2, "top_p": 0.7}, [0.5, 0, 0.25, 0, 0]),
    ],
    ids=str,
)
def test_draws_follow_the_changed_probabilities(parameters, expected):
    assert_close(frequencies(Sampler(**parameters)), expected)


@pytest.mark.tensorflow
def test_a_huge_temperature_draws_all_but_the_impossible():
    probabilities = np.array([0.9, 0, 0.1], "float32")
    sampler = Sampler(temperature=3e38)
    assert_close(frequencies(sampler, probabilities), [1, 0, 1])


def test_a_penalty_is_a_power_of_the_probability_of_what_was_seen():
    seen = np.array([True, False, False, True, False])
    expected = np.where(seen, PROBABILITIES**1.7, PROBABILITIES)
    measured = frequencies(Sampler(repetition_penalty=1.7), seen=seen)
    assert_close(measured, expected)
    # First of all the steps, so greedy sees it too: 0.5 ** 2.5 < 0.25.
    greedy = Sampler(temperature=0, repetition_penalty=2.5)
    assert_close(frequencies(greedy, seen=seen), [0, 0, 1, 0, 0])


@pytest.mark.parametrize("temperature", [0, ops.array(0.0)])
def test_greedy_takes_the_lowest_of_equally_likely_ids(temperature):
    log_probs = np.full((3, 1000), -9.0, "float32")
    log_probs[0, [700, 31, 999]] = -1
    log_probs[1, [998, 999]] = -1
    sampler = Sampler(temperature=temperature)
    for run in (sampler, compiled(sampler, jit_compile=True)):
        ids = run(ops.array(log_probs), seeds_of(0, 3))
        np.testing.assert_array_equal(ids, [31, 998, 0])


def with_no_probabilities():
    """Rows of which the second to the fifth are none."""
    log_probs, seeds, seen = some_log_probs()
    values = np.array(log_probs)
    values[1, 0] = NAN
    values[2, 32] = NAN
    values[3] = -INFINITY
    values[4, 7] = INFINITY
    return ops.array(values), seeds, seen


def assert_no_tokens(ids, parameters):
    np.testing.assert_array_equal(ids[1:5], -1)
    expected = Sampler(**parameters)(*some_log_probs())
    for rows in (slice(1), slice(5, None)):
        np.testing.assert_array_equal(ids[rows], expected[rows])


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_compiled_or_not_draws_are_the_same(parameters):
    log_probs, seeds, seen = some_log_probs()
    eager = np.array(Sampler(**parameters)(log_probs, seeds, seen))
    assert len(set(eager)) > 5
    run = compiled(Sampler(**parameters), jit_compile=True)
    np.testing.assert_array_equal(run(log_probs, seeds, seen), eager)
    assert_no_tokens(run(*with_no_probabilities()), parameters)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_tensors_draw_what_numbers_draw(jit_compile):
    def draw(parameters, log_probs, seeds, seen):
        return Sampler(**parameters)(log_probs, seeds, seen)

    run = compiled(draw, jit_compile=jit_compile)
    all_ids = []
    for parameters in PARAMETERS:
        tensors = as_tensors(parameters)
        ids = np.array(run(tensors, *some_log_probs()))
        expected = Sampler(**parameters)(*some_log_probs())
        np.testing.assert_array_equal(ids, expected, err_msg=str(parameters))
        all_ids.append(tuple(ids))
        assert_no_tokens(run(tensors, *with_no_probabilities()), parameters)
    if ON_TENSORFLOW:
        assert run.experimental_get_tracing_count() == 1
    assert len(set(all_ids)) == len(PARAMETERS)


def test_noise_has_few_ties_and_is_finite():
    noise = np.array(sampler_module.gumbel(seeds_of(0, 4), ops.arange(2**18)))
    assert np.isfinite(noise).all()
    highest = np.sort(noise, axis=-1)[:, -1000:]
    assert (np.diff(highest) == 0).mean() < 0.002
    # Mean and variance of Gumbel's distribution.
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.006)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)


WRONG = [
    *(("temperature", x, "at least 0") for x in (-1.0, NAN, INFINITY)),
    ("top_k", -1, "at least"),
    *(("top_p", x, "above 0 and at most 1") for x in (0.0, 1.5, NAN)),
    *(("repetition_penalty", x, "at least 1") for x in (0.9, NAN)),
]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *WRONG,
        ("top_k", 0, "an integer of at least 1"),
        ("top_k", 2**31, "at most 2147483647"),
        ("temperature", None, "a finite number of at least 0"),
        ("top_p", True, "a finite number above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(name, value, expected):
    with pytest.raises(
        ValueError, match=f"`{name}` must be .*{expected}.*{name}={value!r}"
    ):
        Sampler(**{name: value})


@pytest.mark.tensorflow
@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_tensors_out_of_range_are_refused(name, value, expected):
    value = as_tensors({name: value})[name]
    match = f"`{name}` must be {expected}.*Received: {name}="

    @tf.function
    def run():
        return Sampler(**{name: value})(*some_log_probs())

    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        run()


def test_samplers_are_equal_if_their_parameters_are():
    # `tf.function` asks, of samplers with tensors too.
    assert Sampler(top_k=3) == Sampler(top_k=3)
    assert hash(Sampler(top_k=3)) == hash(Sampler(top_k=3))
    assert Sampler(top_k=3) != Sampler(top_k=4)
    assert Sampler(top_k=3) != 3
    p = ops.array(0.5)
    assert Sampler(top_p=p) == Sampler(top_p=p)
    assert Sampler(top_p=p) != Sampler(top_p=ops.array(0.5))
    assert len({Sampler(top_p=p), Sampler(top_p=p), Sampler()}) == 2


# The first cluster, and three others as wholes.
WORDS = np.array([0.4, 0.3, 0.1], "float32")
TAILS = np.array([0.15, 0.1, 0.05], "float32")


PENALTY = {"temperature": 0.0, "repetition_penalty": 5.0}


@pytest.mark.parametrize(
    ("parameters", "num_seen", "expected"),
    [
        ({"temperature": 0.0}, 0, [False, False, False]),
        ({"top_k": 2}, 0, [False, False, False]),
        # The third word is less likely than the first tail may be, and as
        # likely as the second.
        ({"top_k": 3}, 0, [True, True, False]),
        ({"top_k": 4}, 0, [True, True, True]),
        ({"top_k": 2, "temperature": 1.5, "top_p": 0.9}, 0, [False] * 3),
        ({"top_p": 0.2}, 0, [True, True, True]),
        (PENALTY, 1, [False, False, False]),
        (PENALTY, 2, [True, True, False]),
        (PENALTY, 3, [True, True, True]),
    ],
    ids=str,
)
def test_tails_are_needed_where_one_of_their_words_may_be_kept(
    parameters, num_seen, expected
):
    words, tails = np.log(WORDS)[None], np.log(TAILS)[None]
    seen = np.arange(9)[None] < num_seen
    for given in (parameters, as_tensors(parameters)):
        needed = Sampler(**given).needed_tails(
            ops.array(words), ops.array(tails), ops.array(seen)
        )
        np.testing.assert_array_equal(needed, expected)


def test_names_are_those_of_keras_hub():
    for name, expected in (
        ("random", Sampler()),
        ("greedy", Sampler(temperature=0)),
        ("top_k", Sampler(top_k=5)),
        ("top_p", Sampler(top_p=0.1)),
        ("beam", BeamSampler(num_beams=5)),
    ):
        assert samplers.get(name) == expected
        assert samplers.get(expected) is expected


HUB_SAMPLERS = [
    ("GreedySampler", {}, Sampler(temperature=0)),
    ("RandomSampler", {"temperature": 0.7}, Sampler(0.7)),
    ("TopKSampler", {"k": 3}, Sampler(top_k=3)),
    (
        "TopPSampler",
        {"p": 0.4, "k": 7, "temperature": 0.5},
        Sampler(0.5, top_k=7, top_p=0.4),
    ),
    ("BeamSampler", {"num_beams": 3}, BeamSampler(3)),
    ("ContrastiveSampler", {"k": 4}, "TopPSampler or BeamSampler of `keras_"),
]


def sampler_of_keras_hub(name, config):
    """Returns an object of KerasHub, or one that looks like it."""
    if importlib.util.find_spec("keras_hub"):
        samplers_of_hub = importlib.import_module("keras_hub").samplers
        return getattr(samplers_of_hub, name)(**config)
    config = {"temperature": 1.0, "seed": None, **config}
    attributes = {
        "__module__": "keras_hub.src.samplers.of_a_kind",
        "get_config": lambda self: dict(config),
    }
    return type(name, (), attributes)()


@pytest.mark.parametrize(("name", "config", "expected"), HUB_SAMPLERS)
def test_samplers_of_keras_hub_are_translated(name, config, expected):
    sampler = sampler_of_keras_hub(name, config)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            samplers.get(sampler)
    else:
        assert samplers.get(sampler) == expected


@pytest.mark.parametrize("sampler", ["top-k", "GREEDY", None, 3, Sampler, {}])
def test_what_is_no_sampler_is_refused(sampler):
    with pytest.raises(ValueError, match="`sampler` must be one of random, "):
        samplers.get(sampler)


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(np.float32(0.5), np.int64(3), None, 1.5),
        Sampler(temperature=0, top_p=1),
        BeamSampler(np.int32(3)),
    ],
)
def test_a_sampler_is_restored_from_its_config(sampler):
    config = keras.saving.serialize_keras_object(sampler)
    assert keras.saving.deserialize_keras_object(config) == sampler


def test_samplers_of_a_model_are_of_numbers():
    with pytest.raises(ValueError, match="`top_p` must be a number"):
        Sampler(top_p=ops.array(0.5)).get_config()
    with pytest.raises(ValueError, match="`seen` must be given"):
        Sampler(repetition_penalty=2.0)(np.zeros((1, 3)), np.uint32([1]))
    with pytest.raises(ValueError, match="`num_beams`.*num_beams=0"):
        BeamSampler(num_beams=0)
