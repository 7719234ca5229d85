"""The softmax in clusters against its equation in NumPy."""

import re

import keras
import numpy as np
import pytest
from backends import compiled
from backends import drops_checks
from backends import dtype_of
from backends import gradients
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.layers import AdaptiveEmbedding
from txl_keras.layers import AdaptiveSoftmax
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.samplers import Sampler

pytestmark = pytest.mark.every_backend

V, D, B, T = 50, 6, 3, 8
CUTOFFS = (9, 20, 37)  # tails of 11, 17 and 13 words
HALF = {"cutoffs": CUTOFFS, "embedding_dim": 17, "div_val": 2}
SHARED = {"cutoffs": CUTOFFS, "embedding_dim": 10}
# Arguments of the embedding, and of the softmax.
LAYOUTS = {
    "ordinary": ({}, {}),
    "projected": ({"embedding_dim": 10}, {"tie_projections": False}),
    "one_tail_untied": ({"cutoffs": (17,)}, {"tie_embeddings": False}),
    "shared_projection": (SHARED, {}),
    "shared_projection_some": (
        SHARED,
        {"tie_projections": [True, False, True, False]},
    ),
    "half_each": (HALF, {}),
    "half_each_all_but_first": (HALF, {"tie_projections": "all_but_first"}),
    "half_each_some": (HALF, {"tie_projections": [True, False, False, True]}),
    "half_each_same_dim_as_it_is": (
        {**HALF, "embedding_dim": 12, "project_same_dim": False},
        {"tie_projections": False},
    ),
    "nothing_left_for_the_last": (
        {**HALF, "embedding_dim": 20, "div_val": 4},
        {},
    ),
}


def softmax_of(name, dtype=None, **config):
    """A layer of random weights, the head's entries for the tails too."""
    of_embedding, of_softmax = LAYOUTS[name]
    embedding = AdaptiveEmbedding(V, D, dtype=dtype, **of_embedding)
    softmax = AdaptiveSoftmax(embedding, dtype=dtype, **of_softmax, **config)
    softmax.build()
    randomize(softmax)
    return softmax


def randomize(layer, seed=1):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(0.7 * rng.normal(size=weight.shape))


def by_name(weights):
    return {w.name: w.numpy().astype("float64") for w in weights}


def parameters(name, softmax):
    """Table, bias and projection of every cluster; weights of the tails."""
    embedding = softmax.embedding
    _, of_softmax = LAYOUTS[name]
    shared = {id(w) for w in embedding.weights}
    own = by_name([w for w in softmax.weights if id(w) not in shared])
    tied = of_softmax.get("tie_projections", True)
    clusters = []
    for i in range(embedding.num_clusters):
        table = embedding.embeddings[i].numpy()
        if not of_softmax.get("tie_embeddings", True):
            table = own.pop(f"kernel_{i}")
        is_tied = tied[i] if isinstance(tied, list) else tied
        if tied == "all_but_first":
            is_tied = i > 0
        projection = np.eye(D)
        if embedding.needs_projection(i):
            projection = np.array(embedding.projection(i))
            if not is_tied:
                projection = own.pop(f"projection_{i}")
        bias = own.pop(f"bias_{i}")
        assert (len(bias), projection.shape[0]) == table.shape
        clusters.append((table, bias, projection))
    tails = own.pop("cluster_kernel", None), own.pop("cluster_bias", None)
    assert not own, "a weight that nothing uses"
    return clusters, tails


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def reference(name, softmax, hidden):
    """Log-probabilities of all words, in float64."""
    clusters, (cluster_kernel, cluster_bias) = parameters(name, softmax)
    h = np.array(hidden, "float64")
    head, *tails = (h @ p.T @ table.T + bias for table, bias, p in clusters)
    if cluster_kernel is None:
        return log_softmax(head)
    first = head.shape[-1]
    of_tails = h @ clusters[0][2].T @ cluster_kernel.T + cluster_bias
    head = log_softmax(np.concatenate([head, of_tails], axis=-1))
    words = [head[..., :first]]
    for i, tail in enumerate(tails, first):
        words.append(head[..., i : i + 1] + log_softmax(tail))
    return np.concatenate(words, axis=-1)


def tokens(*shape, low=0, high=V, seed=5):
    """Hidden states, targets in `[low, high)` and weights of the loss."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(*shape, D)).astype("float32")
    targets = rng.integers(low, high, size=shape).astype("int32")
    upstream = rng.normal(size=shape).astype("float32")
    return hidden, targets, upstream


def with_gradients(softmax, through_log_probs=False):
    """Function of tokens: nll, and gradients of its weighted sum."""

    def run(hidden, targets, upstream):
        def loss(hidden):
            if through_log_probs:
                log_probs = softmax.log_probs(hidden)
                places = ops.expand_dims(targets, -1)
                nll = -ops.take_along_axis(log_probs, places, -1)[..., 0]
            else:
                nll = softmax(hidden, targets)
            return ops.sum(ops.multiply(nll, upstream)), nll

        weights = softmax.trainable_weights
        (_, nll), found = gradients(loss, weights, hidden)
        return nll, found

    return run


def assert_same(softmax, run, *inputs):
    """A run's nll and gradients are those through `log_probs`."""
    nll, gradients = run(*inputs)
    expected, expected_gradients = with_gradients(softmax, True)(*inputs)
    np.testing.assert_allclose(nll, expected, atol=1e-5)
    names = ["hidden", *(w.path for w in softmax.trainable_weights)]
    for name, one, other in zip(
        names, gradients, expected_gradients, strict=True
    ):
        np.testing.assert_allclose(
            one, other, atol=2e-5, rtol=2e-5, err_msg=name
        )


@pytest.mark.parametrize("name", LAYOUTS)
def test_nll_and_log_probs_equal_numpy(name):
    softmax = softmax_of(name)
    hidden, targets, _ = tokens(B, T)
    expected = reference(name, softmax, hidden)
    log_probs = softmax.log_probs(hidden)
    np.testing.assert_allclose(log_probs, expected, atol=1e-5)
    np.testing.assert_allclose(
        np.exp(log_probs).sum(-1), np.ones((B, T)), rtol=1e-5
    )
    nll = softmax(hidden, targets)
    assert (tuple(nll.shape), dtype_of(nll)) == ((B, T), "float32")
    picked = np.take_along_axis(expected, targets[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(nll, -picked, atol=1e-5)
    of_every_word = softmax(np.repeat(hidden[:1, 0], V, axis=0), np.arange(V))
    np.testing.assert_allclose(-of_every_word, expected[0, 0], atol=1e-5)
    logits = log_softmax(np.array(softmax.logits(hidden)))
    np.testing.assert_allclose(logits, expected, atol=1e-5)


# Less rows than there are in a tail, as many, and more: see `counted_tokens`.
@pytest.mark.parametrize(
    "name,tail_rows",
    [
        *(("half_each", 1), ("half_each", 24), ("ordinary", 7)),
        *(("one_tail_untied", 7), ("shared_projection_some", 7)),
    ],
)
def test_gradients_are_those_through_log_probs(name, tail_rows):
    softmax = softmax_of(name, tail_rows=tail_rows)
    inputs = counted_tokens()
    run = with_gradients(softmax)
    assert_same(softmax, run, *inputs)
    # What is compared is not zero: at least where a weight has a use.
    _, (_, *gradients) = run(*inputs)
    weights = softmax.trainable_weights
    shared = {id(w) for w in softmax.embedding.weights}
    for weight, gradient in zip(weights, gradients, strict=True):
        if id(weight) not in shared or not LAYOUTS[name][1]:
            assert np.abs(np.array(gradient)).max() > 1e-3, weight.path


def counted_tokens():
    """24 tokens: 3, 7 and 11 in the tails, 3 in the head."""
    rng = np.random.default_rng(8)
    ranges = (0, 9, 3), (9, 20, 3), (20, 37, 7), (37, 50, 11)
    targets = np.concatenate([rng.integers(*each) for each in ranges])
    hidden, _, upstream = tokens(B, T)
    targets = rng.permutation(targets).astype("int32").reshape(B, T)
    return hidden, targets, upstream


@pytest.mark.parametrize(
    "name,jit_compile",
    [("half_each_all_but_first", False), ("nothing_left_for_the_last", True)],
)
def test_compiled_wherever_the_targets_fall(name, jit_compile):
    softmax = softmax_of(name, tail_rows=4)
    run = compiled(with_gradients(softmax), jit_compile=jit_compile)
    assert_same(softmax, run, *counted_tokens())
    # All in the head, or all in one tail: none is dropped.
    for low, high in ((0, 9), (9, 20), (20, 37), (37, 50), (49, 50)):
        assert_same(softmax, run, *tokens(B, T, low=low, high=high))
    if ON_TENSORFLOW:
        assert run.experimental_get_tracing_count() == 1


@pytest.mark.tensorflow
def test_sizes_that_are_not_known_beforehand():
    softmax = softmax_of("half_each")
    run = tf.function(
        with_gradients(softmax),
        input_signature=[
            tf.TensorSpec((None, None, D)),
            tf.TensorSpec((None, None), "int32"),
            tf.TensorSpec((None, None)),
        ],
    )
    nll, _ = run.get_concrete_function().structured_outputs
    assert nll.shape.as_list() == [None, None]
    # More in a tail than one pass holds, and fewer.
    for shape in ((1, 1), (11, 57)):
        assert_same(softmax, run, *tokens(*shape))
    nll, gradients = run(*tokens(0, T))
    assert nll.shape == (0, T)
    assert all(np.abs(g).sum() == 0 for g in gradients)


def test_hidden_states_of_another_size_are_an_error():
    hidden, targets, _ = tokens(B, T)
    softmax = AdaptiveSoftmax(AdaptiveEmbedding(V, D + 1))
    for call in (
        lambda: softmax(hidden, targets),
        lambda: softmax(hidden),
        lambda: softmax.logits(hidden),
    ):
        with pytest.raises(ValueError, match="`hidden` must have the shape"):
            call()


@pytest.mark.tensorflow
@pytest.mark.parametrize("bad", [-1, V, 2**31 - 1])
def test_eager_targets_outside_the_vocabulary_are_an_error(bad):
    hidden, targets, _ = tokens(B, T)
    targets[1, 2], targets[0, 0] = bad, 0
    low, high = min(0, bad), max(int(targets.max()), bad)
    for given in (targets, ops.array(targets)):
        with pytest.raises(
            ValueError, match=rf"`targets` .* \[0, {V}\).* {low} to {high}"
        ):
            softmax_of("half_each")(hidden, given)


@drops_checks
def test_targets_outside_the_vocabulary_are_nan_by_xla_and_no_others():
    softmax = softmax_of("half_each", tail_rows=4)
    hidden, targets, upstream = tokens(B, T)
    known = np.ones((B, T), bool)
    bad = {(0, 0): -1, (1, 2): V, (2, 7): -(2**31), (2, 3): 2**31 - 1}
    for where, target in bad.items():
        targets[where] = target
        known[where] = False
    run = compiled(with_gradients(softmax), jit_compile=True)
    nll, gradients = run(hidden, targets, upstream)
    np.testing.assert_array_equal(np.isnan(nll), ~known)
    # They have no part in the gradients, which stay numbers.
    alone = hidden[known], targets[known], upstream[known]
    expected, expected_gradients = with_gradients(softmax)(*alone)
    np.testing.assert_allclose(nll[known], expected, atol=1e-5)
    np.testing.assert_allclose(
        gradients[0][known], expected_gradients[0], atol=1e-5
    )
    np.testing.assert_array_equal(gradients[0][~known], 0)
    for one, other in zip(gradients[1:], expected_gradients[1:], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.tensorflow
def test_a_tail_is_not_computed_for_every_token():
    # Tails of 211 and 307 words, of tables of 16 and 4.
    embedding = AdaptiveEmbedding(617, 64, cutoffs=(99, 310), div_val=4)
    softmax = AdaptiveSoftmax(embedding, tail_rows=23)
    inputs = tokens(6, 31)
    hidden = np.zeros((6, 31, 64), "float32")
    run = tf.function(with_gradients(softmax), jit_compile=True)
    hlo = run.experimental_get_compiler_ir(hidden, *inputs[1:])(stage="hlo")
    assert "<=" not in hlo  # no size is dynamic
    found = re.findall(r"f32\[([\d,]*)\]", hlo)
    shapes = {tuple(int(n) for n in x.split(",") if n) for x in found}
    # The head is not joined either: 99 words, and 2 tails.
    assert {(186, 99), (186, 2), (211, 23), (307, 23)} <= shapes
    assert (186, 101) not in shapes
    for shape in shapes:
        if set(shape) & {211, 307, 617}:
            # Logits of a pass, tables, biases.
            assert set(shape) <= {211, 307, 23, 16, 4, 1}, shape


def test_bfloat16_hidden_states_give_a_float32_loss():
    exact = softmax_of("half_each")
    low = softmax_of("half_each", "mixed_bfloat16")
    assert {w.dtype for w in low.weights} == {"float32"}
    hidden, targets, upstream = tokens(B, T)
    hidden = ops.cast(hidden, "bfloat16")
    nll, gradients = with_gradients(low)(hidden, targets, upstream)
    expected, expected_gradients = with_gradients(exact)(
        ops.cast(hidden, "float32"), targets, upstream
    )
    assert dtype_of(nll) == "float32"
    # The very hidden states in, so nothing but float32 was done.
    np.testing.assert_allclose(nll, expected, atol=1e-5)
    assert dtype_of(gradients[0]) == "bfloat16"
    for one, other in zip(gradients[1:], expected_gradients[1:], strict=True):
        assert dtype_of(one) == "float32"
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert dtype_of(low.log_probs(hidden)) == "float32"
    assert dtype_of(low.logits(hidden)) == "float32"
    symbol = low(keras.Input((T, D)), keras.Input((T,), dtype="int32"))
    assert (symbol.shape, symbol.dtype) == ((None, T), "float32")
    # Float32 ones are rounded on their way in, as of any layer.
    rounded = low(ops.cast(hidden, "float32"), targets)
    np.testing.assert_allclose(rounded, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["one_tail_untied", "half_each_some"])
def test_config_round_trips(name):
    softmax = softmax_of(
        name, tail_rows=5, kernel_initializer=keras.initializers.Constant(0.5)
    )
    stored = softmax.get_config()
    revived = AdaptiveSoftmax.from_config(stored)
    assert revived.get_config() == stored
    revived.build()
    if not LAYOUTS[name][1].get("tie_embeddings", True):
        assert (revived.kernels[0].numpy() == 0.5).all()
    revived.set_weights(softmax.get_weights())
    hidden, targets, _ = tokens(B, T)
    np.testing.assert_allclose(
        revived(hidden, targets), softmax(hidden, targets), atol=1e-6
    )


def test_without_targets_it_is_the_head_of_a_keras_model():
    embedding = AdaptiveEmbedding(30, 8, cutoffs=(9, 17), div_val=2)
    softmax = AdaptiveSoftmax(embedding)
    ids = keras.Input((5,), dtype="int32")
    log_probs = softmax(embedding(ids))
    assert log_probs.shape == (None, 5, 30)
    model = keras.Model(ids, log_probs)
    x = np.arange(10, dtype="int32").reshape(2, 5)
    np.testing.assert_allclose(
        model(x), softmax.log_probs(embedding(x)), atol=1e-6
    )
    np.testing.assert_allclose(
        np.exp(model.predict(x, verbose=0)).sum(-1), 1, atol=1e-5
    )


SEED = 2**32 - 5


def peaked_softmax(head_bias=0.0, num_tails=3):
    """Tails of 12, 17 and 21 words; a bias makes words of the head likely."""
    cutoffs = (10, 22, 39)[:num_tails]
    embedding = AdaptiveEmbedding(
        60, D, cutoffs=cutoffs, embedding_dim=17, div_val=2
    )
    softmax = AdaptiveSoftmax(embedding)
    softmax.build()
    randomize(softmax)
    bias = softmax.biases[0].numpy()
    bias[:4] += head_bias
    softmax.biases[0].assign(bias)
    return softmax


def some_states(batch_size=40):
    rng = np.random.default_rng(6)
    hidden = ops.array(rng.normal(size=(batch_size, D)), "float32")
    seeds = fold_in(ops.array(SEED, "uint32"), ops.arange(batch_size))
    return hidden, seeds, ops.array(rng.random((batch_size, 60)) < 0.3)


SAMPLERS = [
    {"temperature": 0},
    {"top_k": 3, "temperature": 1.4, "top_p": 0.8},
    {"top_k": 3, "repetition_penalty": 1.3},
    {"temperature": 0, "repetition_penalty": 1.3},
    # Those that need all.
    {"top_k": 30},
    {"top_p": 0.5, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("parameters", SAMPLERS, ids=str)
def test_samples_are_those_of_the_full_computation(parameters):
    softmax = peaked_softmax(2.0)  # some rows need a tail
    sampler = Sampler(**parameters)
    hidden, seeds, seen = some_states()
    expected = sampler(softmax.log_probs(hidden), seeds, seen)
    # Rows alone too: a tail is then left out that another row needs.
    for rows in (slice(40), *(slice(i, i + 1) for i in range(3))):
        ids = softmax.sample(hidden[rows], sampler, seeds[rows], seen[rows])
        assert dtype_of(ids) == "int32"
        np.testing.assert_array_equal(ids, expected[rows])


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "parameters, jit_compile",
    [({}, False), ({}, True), (SAMPLERS[2], True)],
    ids=str,
)
def test_compiled_samples_without_what_cannot_be_drawn(parameters, jit_compile):
    softmax = peaked_softmax(1.0)
    hidden, seeds, seen = some_states()
    sampler = Sampler(**parameters)
    any_size = [
        tf.TensorSpec((None, D)),
        tf.TensorSpec((None,), "uint32"),
        tf.TensorSpec((None, 60), "bool"),
    ]
    run = tf.function(
        lambda h, s, seen: softmax.sample(h, sampler, s, seen),
        input_signature=None if jit_compile else any_size,
        jit_compile=jit_compile,
    )
    eager = np.array(softmax.sample(hidden, sampler, seeds, seen))
    assert len(set(eager)) > 2
    np.testing.assert_array_equal(run(hidden, seeds, seen), eager)
    if not jit_compile:
        row = run(hidden[7:8], seeds[7:8], seen[7:8])
        np.testing.assert_array_equal(row, eager[7:8])
    # Now only words of the head are drawn.
    softmax.biases[0].assign(softmax.biases[0] + 39.0 * (np.arange(10) < 4))
    seen = ops.zeros_like(seen)
    expected = np.array(run(hidden, seeds, seen))
    assert (expected < 4).all()
    # No result can have come from NaN.
    for table in softmax.embedding.embeddings[1:]:
        table.assign(np.full(table.shape, np.nan))
    np.testing.assert_array_equal(run(hidden, seeds, seen), expected)
    assert np.isnan(softmax.log_probs(hidden)[:, 10:]).all()


@pytest.mark.parametrize("num_tails", [0, 3])
def test_plain_draws_have_the_probabilities_of_all_words(num_tails):
    softmax = peaked_softmax(num_tails=num_tails)
    hidden, _, _ = some_states(2)
    draws = 20_000
    seeds = fold_in(ops.array(SEED, "uint32"), ops.arange(2 * draws))
    rows = ops.repeat(hidden, draws, axis=0)
    drawn = np.array(softmax.sample(rows, Sampler(), seeds))
    drawn = drawn.reshape(2, draws)
    probabilities = np.exp(np.array(softmax.log_probs(hidden)))
    for ids, expected in zip(drawn, probabilities, strict=True):
        measured = np.bincount(ids, minlength=60) / draws
        # Five standard deviations.
        tolerance = 5 * np.sqrt(expected * (1 - expected) / draws) + 1 / draws
        assert (np.abs(measured - expected) < tolerance).all()
    # Head and tails both have a share that shows.
    in_head = probabilities[:, :10].sum(-1)
    assert num_tails == 0 or ((in_head > 0.1) & (in_head < 0.9)).any()


def test_large_logits_cost_no_digits():
    # Two words of a head, and one tail in which all words are as likely.
    embedding = AdaptiveEmbedding(6, 2, cutoffs=(2,))
    softmax = AdaptiveSoftmax(embedding)
    softmax.build()
    softmax.biases[0].assign([1e4, 9998.0])
    softmax.cluster_bias.assign([9992.0])
    softmax.biases[1].assign(ops.full((4,), 3e4))
    nll = softmax(np.zeros((2, 2), "float32"), np.array([0, 3]))
    total = np.log1p(np.exp(-2) + np.exp(-8))
    expected = [total, total + 8 + np.log(4)]
    np.testing.assert_allclose(nll, expected, rtol=1e-6)
