"""Generation with `engine="openvino"`, compared with TensorFlow."""

import gc
import inspect
import signal
import sys
import textwrap
import types

import numpy as np
import pytest
import tensorflow as tf
from factories import small_model

from txl_keras.extending import registered
from txl_keras.models import LSTMBackbone
from txl_keras.models import SegmentReader
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.generation.openvino_decoder import OpenVinoDecoder
from txl_keras.models.generation.openvino_graph import openvino_core
from txl_keras.samplers import BeamSampler
from txl_keras.samplers import Sampler

B, M, V = 3, 7, 600
CONFIGS = {
    "one table, post-norm": {"vocabulary_size": 11},
    # The first projection is square, and used in both directions.
    "tied": {
        "cutoffs": (280, 410), "div_val": 2, "hidden_dim": 16,
        "clamp_length": 4, "same_length": True, "tie_projections": True,
    },
    "untied, pre-norm": {
        "cutoffs": (280, 410), "embedding_dim": 10, "hidden_dim": 14,
        "tie_embeddings": False, "tie_projections": False,
        "tie_attention_biases": False, "same_length": "pytorch",
        "normalize_first": True, "normalize_output": True, "num_layers": 1,
    },
    "zeros, square kernels": {
        "cutoffs": (280,), "div_val": 2, "hidden_dim": 16, "head_dim": 8,
        "intermediate_dim": 16, "tie_projections": "all_but_first",
        "cold_start": "zeros", "num_layers": 1,
    },
}  # fmt: skip


def model_of(config):
    return small_model(**{"vocabulary_size": V, "num_layers": 2, **config})


def both_log_probs(model, weights, num_steps):
    """Yields those of TensorFlow and of OpenVINO, `(B, V)`, token by token.

    The texts before have 3 tokens, 1 and none.
    """
    reader = SegmentReader(model.backbone, B, 3, M)
    reader.begin()

    def read(ids, lengths=None):
        hidden, entries = reader.read(tf.constant(ids))
        reader.remember(entries, lengths)
        return model.softmax.log_probs(hidden[:, -1]).numpy()

    size = model.backbone.vocabulary_size
    ids = np.random.default_rng(2).integers(0, size, (B, 3 + num_steps))
    read(ids[:, :3], tf.constant([3, 1, 0]))
    decoder = OpenVinoDecoder(model, B, M, weights)
    decoder.begin(reader.memory())
    for column in ids[:, 3:].T.astype("int32"):
        yield read(column[:, None]), decoder(column)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_equal_those_of_tensorflow(name):
    pytest.importorskip("openvino")
    model = model_of(CONFIGS[name])
    # The ring buffer wraps around twice.
    for expected, found in both_log_probs(model, "float32", 2 * M + 2):
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "tolerance"), [("bfloat16", 0.01), ("int8", 0.02)]
)
def test_weights_in_fewer_bytes_are_close(weights, tolerance):
    pytest.importorskip("openvino")
    capabilities = openvino_core().get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES"
    )
    if weights == "bfloat16" and "BF16" not in capabilities:
        pytest.skip("The processor has no bfloat16 instructions.")
    model = model_of({**CONFIGS["tied"], "initializer_stddev": 0.1})
    for expected, found in both_log_probs(model, weights, M + 2):
        divergence = np.sum(np.exp(expected) * (expected - found), axis=-1)
        assert 0 < divergence.max() < tolerance


def test_what_the_graph_reads_is_not_freed():
    pytest.importorskip("openvino")
    model = model_of({"vocabulary_size": 11})
    (positions,) = model.backbone.project_positions(M + 1)[0]
    steps = both_log_probs(model, "float32", 4)
    next(steps)
    # Takes the place of arrays of the same size that were freed.
    spoiled = [np.full(positions.shape, np.nan, "float32") for _ in range(500)]
    for expected, found in steps:
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.isnan(spoiled).all()


def test_signals_are_heard_after_decoders_are_gone():
    """The CPU plugin of OpenVINO takes its stack for them away at its end."""
    pytest.importorskip("openvino")
    model = model_of({"vocabulary_size": 11, "num_layers": 1})
    first, second = (OpenVinoDecoder(model, B, M) for _ in range(2))
    del first
    gc.collect()
    del second
    gc.collect()
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [1]


@pytest.mark.large  # half a minute
@pytest.mark.parametrize(
    ("weights", "limit"),
    [("float32", 1e-6), ("bfloat16", 1e-3), ("int8", 5e-3)],
)
def test_a_trained_model_predicts_nearly_as_well(weights, limit):
    """Compares the nats per token of a text, read token by token."""
    pytest.importorskip("openvino")
    model = TransformerXLCausalLM.from_preset("python_stdlib_small")
    ids = model.tokenizer.encode(inspect.getsource(textwrap)[:3000])
    ids = ids[:, None].astype("int32")
    memory_length = model.backbone.memory_length
    reader = SegmentReader(model.backbone, 1, 1, memory_length)
    reader.begin()
    decoder = OpenVinoDecoder(model, 1, memory_length, weights)
    decoder.begin(reader.memory())

    @reader.compile
    def read(token):
        hidden, entries = reader.read(token[:, None])
        return model.softmax.log_probs(hidden[:, 0]), entries

    nats = np.zeros(2)
    for token, (target,) in zip(ids, ids[1:], strict=False):
        log_probs, entries = read(tf.constant(token))
        reader.remember(entries)
        for i, found in enumerate((log_probs.numpy(), decoder(token))):
            nats[i] -= found[0, target]
    print(f"{weights}: {nats[1] / nats[0] - 1:+.3%} of {nats[0]:.1f} nats")
    assert abs(nats[1] / nats[0] - 1) < limit


def test_generator_and_generate_write_what_tensorflow_writes():
    pytest.importorskip("openvino")
    model = model_of({"vocabulary_size": 11})
    prompts = [[3, 1, 4], [1]]
    sampler = Sampler(temperature=0, repetition_penalty=1.2)
    # Each keeps what it compiled.
    models = [model, model_of({"vocabulary_size": 11})]

    def written(engine):
        rows, log_probs, memory = models[engine == "openvino"].generate(
            prompts,
            max_new_tokens=12,
            strip_prompt=True,
            sampler=sampler,
            memory_length=M,
            engine=engine,
            num_return_sequences=2,
            return_log_probs=True,
            return_memory=True,
        )
        return np.array(rows), log_probs, memory.states

    first = 0
    # New weights are used in the next call.
    for factor in (1.0, -1.0, 0.5):
        weights = [factor * weight for weight in model.get_weights()]
        for either in models:
            either.set_weights(weights)
        rows, *others = written("tensorflow")
        assert (rows != first).any()
        found, *others_found = written("openvino")
        np.testing.assert_array_equal(found, rows)
        for a, b in zip(others_found, others, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
        first = rows


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"make": LSTMBackbone}, "attention_type=None"),
        ({"attention_type": "shaw", "max_positions": 9}, "'shaw'"),
        ({"make": registered("backbone")["same_layer"]}, "SameLayerBackbone"),
        ({"memory_length": 0}, "memory_length=0"),
        ({"cutoffs": (4, 7), "div_val": 8}, "embeddings of size 0"),
    ],
)
def test_models_that_only_tensorflow_decodes_are_refused(config, part):
    model = small_model(num_layers=1, **config)
    with pytest.raises(
        ValueError, match=f"Received: engine='openvino'.*{part}"
    ):
        model.generate(
            [1], memory_length=config.get("memory_length"), engine="openvino"
        )


def test_bad_engines_are_refused(monkeypatch):
    model = small_model(num_layers=1)
    with pytest.raises(ValueError, match="engine='onnx'"):
        model.generate([1], engine="onnx")
    with pytest.raises(ValueError, match="weights='int4'"):
        model.generate([1], engine="openvino", weights="int4")
    with pytest.raises(ValueError, match="engine='openvino', or.*'int8'$"):
        model.generate([1], weights="int8")
    with pytest.raises(ValueError, match="with a BeamSampler"):
        model.generate([1], sampler=BeamSampler(2), engine="openvino")
    with pytest.raises(ValueError, match="with a BeamSampler.*'int8'$"):
        model.generate([1], sampler=BeamSampler(2), weights="int8")
    for module in (None, types.SimpleNamespace(__version__="2026.3.1-1-x")):
        monkeypatch.setitem(sys.modules, "openvino", module)
        with pytest.raises(
            ImportError, match=r"2026\.4 or newer is needed: pip"
        ):
            model.generate([1], engine="openvino")
    model.backbone.enable_lora(rank=2)
    with pytest.raises(ValueError, match="a model with LoRA or weights"):
        model.generate([1], engine="openvino")
