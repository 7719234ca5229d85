"""LoRA: only its matrices are trained, and every way to compute sees them."""

import keras
import numpy as np
import pytest
import safetensors.numpy
from factories import D
from factories import H
from factories import N
from factories import assert_same
from factories import random_ids
from factories import small_backbone
from factories import small_model
from model_checks import check_every_way
from model_checks import scored

from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM

B, T, RANK = 3, 5, 4
# Keras warns of each kind of layer that stays float.
pytestmark = [
    pytest.mark.every_backend,
    pytest.mark.filterwarnings("ignore:Layer .* `quantize` method"),
]
ALL = (
    "query",
    "key",
    "value",
    "position",
    "output",
    "feed_forward_intermediate",
    "feed_forward_output",
)


def adapted_model(names=ALL, quantize=False, **config):
    """Language model whose LoRA matrices are far from zero."""
    model = small_model(**{"num_layers": 1, "memory_length": 2 * T, **config})
    if quantize:
        model.quantize("int8")
    model.backbone.enable_lora(RANK, lora_alpha=2, target_layer_names=names)
    rng = np.random.default_rng(5)
    for weight in lora_weights(model):
        weight.assign(0.5 * rng.normal(size=weight.shape))
    return model


def lora_weights(model):
    return [w for w in model.weights if "lora_kernel" in w.path]


def base_weights(model):
    return {w.path: w.numpy() for w in model.weights if "lora" not in w.path}


def test_nothing_changes_before_training():
    model = small_model(num_layers=1)
    ids = random_ids(B, 2 * T + 1)
    expected = scored(model, ids)
    model.backbone.enable_lora(RANK)
    np.testing.assert_array_equal(scored(model, ids), expected)
    shapes = {w.path.split("/", 2)[2]: w.shape for w in lora_weights(model)}
    assert shapes == {
        f"attention/{name}/{part}": shape
        for name in ("query", "value")
        for part, shape in (
            ("lora_kernel_a", (D, N, RANK)),
            ("lora_kernel_b", (RANK, H)),
        )
    }
    assert [v.path for v in model.trainable_variables] == [
        v.path for v in lora_weights(model)
    ]


@pytest.mark.parametrize(
    ("make", "how"),
    [(TransformerXLBackbone, "preset"), (XLNetBackbone, "keras")],
)
def test_kernels_are_the_sum_that_the_paper_defines(make, how, tmp_path):
    model = adapted_model(make=make)
    ids = random_ids(B, 2 * T + 1)
    expected = scored(model, ids)
    assert np.abs(expected - scored(small_model(), ids)).max() > 0.1
    if how == "preset":
        model.save_to_preset(tmp_path / "merged")
        merged = type(model).from_preset(tmp_path / "merged")
    else:
        model.save(tmp_path / "merged.keras")
        merged = keras.saving.load_model(tmp_path / "merged.keras")
    assert not lora_weights(merged)
    np.testing.assert_allclose(scored(merged, ids), expected, atol=1e-5)
    weights = {w.path.split("/", 1)[1]: w.numpy() for w in model.weights}
    loaded = {w.path.split("/", 1)[1]: w.numpy() for w in merged.weights}
    for name in ("attention/query", "feed_forward_output"):
        name = f"block_0/{name}"
        a, b = (weights[f"{name}/lora_kernel_{part}"] for part in "ab")
        np.testing.assert_allclose(
            loaded[f"{name}/kernel"],
            weights[f"{name}/kernel"] + 2 / RANK * a @ b,
            atol=1e-6,
        )


def test_merging_does_not_round_kernels_to_the_compute_dtype(tmp_path):
    model = small_model("mixed_bfloat16", num_layers=1)
    before = model.get_weights()
    model.backbone.enable_lora(RANK)  # of zeros
    model.save_to_preset(tmp_path / "merged")
    merged = type(model).from_preset(tmp_path / "merged")
    assert_same(merged.get_weights(), before)


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (TransformerXLBackbone, TransformerXLCausalLM),
        (XLNetBackbone, XLNetPermutationLM),
    ],
)
def test_a_head_that_is_made_later_is_frozen(make, head):
    backbone = small_backbone(make=make, num_layers=1)
    backbone.enable_lora(RANK)
    model = head(backbone)
    trained = {w.path for w in model.trainable_variables}
    assert trained == {w.path for w in lora_weights(model)}


@pytest.mark.parametrize("quantize", [False, True])
def test_every_way_to_compute_agrees(quantize):
    model = adapted_model(quantize=quantize)
    ids = random_ids(B, 2 * T + 1)
    check_every_way(model, ids, atol=0.02 if quantize else 1e-5)


def check_that_fit_trains_lora_alone(model, ids):
    before = base_weights(model)
    lora_before = [w.numpy() for w in lora_weights(model)]
    losses = model.fit(
        ids[:, :-1], ids[:, 1:], batch_size=B, epochs=5, verbose=0
    ).history["loss"]
    assert losses[-1] < losses[0]
    after = base_weights(model)
    assert after.keys() == before.keys()
    for path in before:
        np.testing.assert_array_equal(after[path], before[path], err_msg=path)
    for weight, old in zip(lora_weights(model), lora_before, strict=True):
        assert np.abs(weight.numpy() - old).max() > 0, weight.path


def text_to_learn():
    ids = np.tile(random_ids(B, 1), (1, T + 1))
    ids[1:] = random_ids(B, T + 1, seed=8)[1:]
    return ids


# Elsewhere `evaluate` builds the optimizer, for the weights that there are.
@pytest.mark.tensorflow
def test_a_compiled_model_is_traced_again_and_trains_lora_alone():
    model = small_model(num_layers=1)
    model.compile(keras.optimizers.Adam(0.03), jit_compile=False)
    ids = text_to_learn()
    x, y = ids[:, :-1], ids[:, 1:]

    def evaluate():
        return model.evaluate(x, y, batch_size=B, verbose=0, return_dict=True)[
            "loss"
        ]

    evaluate()
    model.backbone.enable_lora(RANK)
    for weight in lora_weights(model):
        weight.assign(np.ones(weight.shape))
    expected = np.mean(np.array(model.score(x, y)[0]))
    np.testing.assert_allclose(evaluate(), expected, rtol=1e-5)
    model.quantize("int8")
    quantized = np.mean(np.array(model.score(x, y)[0]))
    assert abs(quantized - expected) > 1e-4
    np.testing.assert_allclose(evaluate(), quantized, rtol=1e-3)
    check_that_fit_trains_lora_alone(model, ids)


def test_a_classifier_trains_its_head_too():
    backbone = small_model(num_layers=1).backbone
    model = TransformerXLTextClassifier(backbone, 2, segment_length=T)
    backbone.enable_lora(RANK)
    names = {v.path.split("/")[-1] for v in model.trainable_variables}
    assert names == {"lora_kernel_a", "lora_kernel_b", "kernel", "bias"}
    assert len(model.trainable_variables) == 4 + 2


def test_files_hold_lora_and_nothing_else(tmp_path, monkeypatch):
    model = adapted_model(("query", "feed_forward_output"))
    path = tmp_path / "mine.lora.safetensors"
    monkeypatch.setenv("HOME", str(tmp_path))
    model.backbone.save_lora_weights("~/mine.lora.safetensors")
    num_values = sum(np.prod(w.shape) for w in lora_weights(model))
    file = safetensors.numpy.load_file(path)
    assert file.pop("lora/alpha") == 2
    assert sum(array.size for array in file.values()) == num_values
    assert sorted(file) == [
        f"lora/block_0/{layer}/lora_kernel_{part}"
        for layer in ("attention/query", "feed_forward_output")
        for part in "ab"
    ]
    other = small_model(num_layers=1, memory_length=2 * T)
    other.set_weights(list(base_weights(model).values()))
    other.backbone.enable_lora(RANK, 2, ("query", "feed_forward_output"))
    other.backbone.load_lora_weights(str(path))
    ids = random_ids(B, 2 * T + 1)
    np.testing.assert_allclose(
        scored(other, ids), scored(model, ids), atol=1e-6
    )
    assert len(other.trainable_variables) == 4


QUERY = {"target_layer_names": ("query",)}


@pytest.fixture
def lora_file(tmp_path):
    path = tmp_path / "mine.lora.safetensors"
    adapted_model(("query",)).backbone.save_lora_weights(path)
    return path


@pytest.mark.parametrize(
    "config,enable,message",
    [
        (
            {},
            {**QUERY, "rank": 3},
            r"lora_kernel_a is \(8, 2, 4\), not \(8, 2, 3\)",
        ),
        ({}, {**QUERY, "rank": RANK}, "`lora_alpha` of this model.*: 2.0"),
        ({}, {"rank": RANK, "target_layer_names": ("value",)}, "is missing"),
        (
            {"head_dim": 6},
            {**QUERY, "rank": RANK},
            r"\(4, 5\), not \(4, 6\)",
        ),
    ],
)
def test_a_file_of_another_model_changes_nothing(
    lora_file, config, enable, message
):
    model = small_model(num_layers=1, **config)
    model.backbone.enable_lora(**enable)
    before = [w.numpy() for w in model.weights]
    with pytest.raises(ValueError, match=message):
        model.backbone.load_lora_weights(lora_file)
    assert_same(model.weights, before)


A, ALPHA = "lora/block_0/attention/query/lora_kernel_a", "lora/alpha"


@pytest.mark.parametrize(
    "name,value,message",
    [
        (A, None, "is of another model: .*kernel_a is missing"),
        (A, np.full((D, N, RANK), np.nan, "float32"), "kernel_a is not finite"),
        (A, np.zeros((D, N, RANK), "int32"), "must be of floats"),
        (ALPHA, None, "is of another model: .*alpha is missing"),
        (ALPHA, np.float32(np.nan), "alpha is not finite"),
        ("lora/other", np.zeros(2, "float32"), "is of another model: .*other"),
    ],
    ids=str,
)
def test_a_damaged_file_is_an_error(lora_file, name, value, message):
    arrays = {**safetensors.numpy.load_file(lora_file), name: value}
    arrays = {n: np.asarray(a) for n, a in arrays.items() if a is not None}
    safetensors.numpy.save_file(arrays, lora_file)
    enable = {"rank": RANK, "lora_alpha": 2, **QUERY}
    test_a_file_of_another_model_changes_nothing(lora_file, {}, enable, message)


def test_bad_arguments_are_errors(tmp_path):
    model = small_model(num_layers=1)
    backbone = model.backbone
    path = tmp_path / "mine.lora.safetensors"
    for wrong, message in (
        ({"rank": 0}, "`rank` must be an integer of at least 1"),
        ({"rank": 2, "lora_alpha": 0}, "`lora_alpha` must be"),
        (
            {"rank": 2, "target_layer_names": ("query", "qeury")},
            "`target_layer_names` must be names of .*'query'",
        ),
        ({"rank": 2, "target_layer_names": ()}, "must be names of"),
        ({"rank": 2, "target_layer_names": "query"}, "must be a list"),
        ({"rank": 2, "target_layer_names": [["query"]]}, "must be names of"),
    ):
        with pytest.raises(ValueError, match=message):
            backbone.enable_lora(**wrong)
    assert len(model.trainable_variables) == len(model.weights)
    for call in (backbone.save_lora_weights, backbone.load_lora_weights):
        with pytest.raises(ValueError, match="LoRA must be enabled before"):
            call(path)
    backbone.enable_lora(2)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        backbone.load_lora_weights(path)
    with pytest.raises(ValueError, match="only once"):
        backbone.enable_lora(2)
    for wrong in (tmp_path / "mine.h5", None, 5, b"mine.lora.safetensors"):
        with pytest.raises(ValueError, match="`filepath` must be a path that "):
            backbone.save_lora_weights(wrong)
    model.quantize("int8")
    with pytest.raises(ValueError, match="LoRA cannot be .* `model.save`"):
        model.save_to_preset(tmp_path / "quantized")
    lstm = small_model(make=LSTMBackbone, num_layers=1)
    with pytest.raises(ValueError, match="`target_layer_names` must be names"):
        lstm.backbone.enable_lora(2)
