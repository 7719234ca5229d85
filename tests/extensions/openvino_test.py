"""Decoding by OpenVINO, compared with TensorFlow, and the export for it."""

import gc
import inspect
import json
import signal
import sys
import textwrap
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import small_model

from txl_keras.extensions.openvino import OpenVinoReader
from txl_keras.extensions.openvino import export_openvino
from txl_keras.extensions.openvino import openvino_core
from txl_keras.extensions.same_layer import SameLayerBackbone
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.generation.token_reader import TokenReader
from txl_keras.samplers import Sampler

B, M, V = 3, 7, 600
CONFIGS = {
    # Projections are used in both directions, of which the first is square.
    "tied": {
        "cutoffs": (280, 410), "div_val": 2, "hidden_dim": 16,
        "clamp_length": 4, "same_length": True,
        "tie_projections": "all_but_first",
    },
    "untied": {
        "cutoffs": (280, 410), "embedding_dim": 10, "hidden_dim": 14,
        "tie_embeddings": False, "tie_projections": False,
        "tie_attention_biases": False, "same_length": "pytorch",
        "num_layers": 1,
    },
}  # fmt: skip
TIED = {**CONFIGS["tied"], "initializer_stddev": 0.1}


def model_of(config):
    return small_model(**{"vocabulary_size": V, "num_layers": 2, **config})


def both_log_probs(model, weights, num_steps):
    """Yields those of TensorFlow and of OpenVINO, `(B, V)`, token by token."""
    readers = [
        TokenReader(model, B, M),
        OpenVinoReader(model, B, M, weights),
    ]
    size = model.backbone.vocabulary_size
    ids = np.random.default_rng(2).integers(0, size, (num_steps, B), "int32")
    for reader in readers:
        reader.begin([ids[:4, 0], ids[:2, 1], ids[:1, 2]])
    for row in ids:
        yield [reader(tf.constant(row)).numpy() for reader in readers]


def divergence(expected, found):
    return np.sum(np.exp(expected) * (expected - found), axis=-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_equal_those_of_tensorflow(name):
    pytest.importorskip("openvino")
    model = model_of(CONFIGS[name])
    spoiled = []
    # The ring buffer wraps around twice.
    for expected, found in both_log_probs(model, "float32", 2 * M + 2):
        np.testing.assert_allclose(found, expected, atol=1e-4)
        # Takes the place of what the graph reads, if that was freed.
        spoiled += [np.full((M + 1) * 16, np.nan, "float32") for _ in range(99)]
    assert np.isnan(spoiled).all()


def test_weights_in_fewer_bytes_are_close():
    """`test_a_client_predicts_what_the_model_does` has bfloat16."""
    pytest.importorskip("openvino")
    for expected, found in both_log_probs(model_of(TIED), "int8", M + 2):
        assert 0 < divergence(expected, found).max() < 0.02


def test_signals_are_heard_after_readers_are_gone():
    """The CPU plugin of OpenVINO takes its stack for them away at its end."""
    pytest.importorskip("openvino")
    model = model_of({"vocabulary_size": 11, "num_layers": 1})
    for _ in range(2):
        OpenVinoReader(model, 1, M).begin([[1]])
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
    length, nats = model.backbone.memory_length, []
    for reader in (
        TokenReader(model, 1, length),
        OpenVinoReader(model, 1, length, weights),
    ):
        reader.begin([ids[:1, 0]])
        found = [reader(tf.constant(token)).numpy() for token in ids[:-1]]
        at = np.take_along_axis(np.concatenate(found), ids[1:], 1)
        nats.append(-at.sum(dtype="float64"))
    print(f"{weights}: {nats[1] / nats[0] - 1:+.3%} of {nats[0]:.1f} nats")
    assert abs(nats[1] / nats[0] - 1) < limit


@pytest.mark.parametrize(
    "sampler", [Sampler(temperature=0, repetition_penalty=1.2), "beam"]
)
def test_generate_writes_what_tensorflow_writes(sampler):
    pytest.importorskip("openvino")
    model, is_beam = model_of({"vocabulary_size": 11}), sampler == "beam"

    def written(engine):
        return model.generate(
            [[3, 1, 4], [1]],
            max_new_tokens=12,
            sampler=sampler,
            memory_length=M,
            engine=engine,
            return_memory=True,
            return_log_probs=not is_beam,
        )

    first = np.zeros(28)
    # New weights are used in the next call.
    for factor in (1.0,) if is_beam else (1.0, -1.0):
        model.set_weights([factor * x for x in model.get_weights()])
        (rows, *expected), (found, *values) = map(
            written, ("tensorflow", "openvino")
        )
        np.testing.assert_array_equal(
            np.concatenate(found), np.concatenate(rows)
        )
        assert (np.concatenate(rows) != first).any()
        first = np.concatenate(rows)
        assert_same(*map(tf.nest.flatten, (values, expected)), atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"make": LSTMBackbone},
        {"attention_type": "shaw", "max_positions": 9},
        {"normalize_first": True},
        {"make": SameLayerBackbone},
        {"memory_length": 0},
    ],
)
def test_models_that_only_tensorflow_decodes_are_refused(config):
    model = small_model(num_layers=1, **config)
    length = config.get("memory_length")
    with pytest.raises(ValueError, match="`engine` must not be OpenVINO's unl"):
        model.generate([1], memory_length=length, engine="openvino")


def test_bad_arguments_are_refused(monkeypatch, tmp_path):
    model = small_model(num_layers=1)
    with pytest.raises(ValueError, match="weights='int4'"):
        model.generate([1], engine="openvino", weights="int4")
    with pytest.raises(TypeError, match="no arguments .*'weights'"):
        model.generate([1], weights="int8")
    path = str(tmp_path / "model")
    with pytest.raises(ValueError, match="`num_rows`"):
        export_openvino(model, path, num_rows=0)
    with pytest.raises(ValueError, match="memory_length=-3"):
        export_openvino(model, path, memory_length=-3)
    with pytest.raises(ValueError, match="`model` .* TransformerXLCausalLM"):
        export_openvino(model.backbone, path)
    old = types.SimpleNamespace(__version__="2026.3.1-1-x")
    for module, message in ((None, "openvino is needed"), (old, "2026.4 or n")):
        monkeypatch.setitem(sys.modules, "openvino", module)
        with pytest.raises(ImportError, match=message):
            model.generate([1], engine="openvino")
    model.backbone.enable_lora(rank=2)
    with pytest.raises(ValueError, match="`format` must not be OpenVINO's"):
        export_openvino(model, path)
    assert not (tmp_path / "model").exists()


class Client:
    """Reads tokens by an exported model, with OpenVINO and NumPy alone."""

    def __init__(self, path):
        settings = json.loads((path / "assets" / "settings.json").read_text())
        self.memory_length = settings["memory_length"]
        compiled = openvino_core().compile_model(
            path / "model.xml",
            "CPU",
            {"INFERENCE_PRECISION_HINT": settings["inference_precision"]},
        )
        self.request = compiled.create_infer_request()
        self.inputs = {
            port.any_name: self.request.get_tensor(port).data
            for port in compiled.inputs
        }
        for array in self.inputs.values():
            array[...] = 0
        for name, array in np.load(path / "positions.npz").items():
            self.inputs[name][...] = array
        self.inputs["valid_length"][...] = settings["initial_valid_length"]
        self.caches = [
            array
            for name, array in self.inputs.items()
            if name.startswith(("key", "value"))
        ]

    def __call__(self, ids):
        slot, valid_length = self.inputs["slot"], self.inputs["valid_length"]
        self.inputs["ids"][...] = ids
        self.request.infer()
        log_probs, entries = (x.data for x in self.request.output_tensors)
        for cache, entry in zip(self.caches, entries, strict=True):
            cache[:, :, slot[0]] = entry
        slot[...] = (slot + 1) % self.memory_length
        valid_length[...] = np.minimum(valid_length + 1, self.memory_length)
        return log_probs


def test_a_row_begins_another_text_while_the_others_go_on(tmp_path):
    pytest.importorskip("openvino")
    model, path = small_model(num_layers=1), tmp_path / "model"
    export_openvino(model, str(path), M, B)
    client, memory = Client(path), model.initial_memory(B, M)
    size = model.backbone.vocabulary_size
    ids = np.random.default_rng(3).integers(0, size, (2 * M, B), "int32")
    for i, column in enumerate(ids):
        if i == M + 2:
            client.inputs["valid_length"][1] = 0
            memory = keras.tree.map_structure(np.array, memory)
            memory.valid_length[1] = 0
        expected, memory = model.log_probs(column[:, None], memory)
        np.testing.assert_allclose(client(column), expected[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("config", "weights_dtype", "limit", "size"),
    [
        (TIED, "bfloat16", 0.01, 0.8),
        ({"vocabulary_size": 11, "cold_start": "zeros"}, "float32", 1e-6, 1),
    ],
)
def test_a_client_predicts_what_the_model_does(
    config, weights_dtype, limit, size, tmp_path
):
    pytest.importorskip("openvino")
    model, path = model_of(config), tmp_path / "model"
    export_openvino(model, str(path), M, B, weights_dtype, {"step": 9})
    num_bytes = (path / "model.bin").stat().st_size
    assert num_bytes < size * 4 * model.count_params() + 1000
    client, memory = Client(path), model.initial_memory(B, M)
    vocabulary_size = model.backbone.vocabulary_size
    ids = np.random.default_rng(2).integers(0, vocabulary_size, (2 * M + 2, B))
    # The ring buffer wraps around.
    for column in ids.astype("int32"):
        expected, memory = model.log_probs(column[:, None], memory)
        found = divergence(expected[:, 0].numpy(), client(column))
        assert np.abs(found).max() < limit
