"""The export for OpenVINO, run as a client without TensorFlow runs it."""

import json

import numpy as np
import pytest
from factories import small_model

from txl_keras.serving import export_openvino

# Only one, kept: see `openvino_core`.
CORE = pytest.importorskip("openvino").Core()

B, M, V = 3, 5, 600
TIED = {
    "vocabulary_size": V, "num_layers": 2, "cutoffs": (280, 410), "div_val": 2,
    "hidden_dim": 16, "tie_projections": True, "initializer_stddev": 0.1,
}  # fmt: skip


class Client:
    """Reads tokens by an exported model, with OpenVINO and NumPy alone."""

    def __init__(self, path):
        settings = json.loads((path / "assets" / "settings.json").read_text())
        self.memory_length = settings["memory_length"]
        compiled = CORE.compile_model(
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


def divergences(model, path, num_steps):
    """Yields the KL divergences of both predictions, `(B,)`, by tokens."""
    client, memory = Client(path), model.initial_memory(B, M)
    vocabulary_size = model.backbone.vocabulary_size
    ids = np.random.default_rng(2).integers(0, vocabulary_size, (num_steps, B))
    for column in ids.astype("int32"):
        expected, memory = model.log_probs(column[:, None], memory)
        expected = expected[:, 0].numpy()
        found = client(column)
        yield np.sum(np.exp(expected) * (expected - found), axis=-1)


@pytest.mark.parametrize(
    ("config", "weights_dtype", "limit"),
    [
        (TIED, "float32", 1e-6),
        (TIED, "bfloat16", 0.01),
        (TIED, "int8", 0.02),
        ({"vocabulary_size": 11, "cold_start": "zeros"}, "float32", 1e-6),
    ],
)
def test_a_client_predicts_what_the_model_does(
    config, weights_dtype, limit, tmp_path
):
    model, path = small_model(**config), tmp_path / "model"
    export_openvino(model, str(path), M, B, weights_dtype)
    # The ring buffer wraps around.
    found = [*divergences(model, path, 2 * M + 2)]
    assert np.max(np.abs(found)) < limit


def test_weights_in_fewer_bytes_make_smaller_files(tmp_path):
    model, sizes = small_model(**{**TIED, "hidden_dim": 64}), []
    for dtype in ("float32", "bfloat16", "int8"):
        # An earlier export is replaced.
        export_openvino(model, str(tmp_path / "model"), M, 1, dtype)
        sizes.append((tmp_path / "model" / "model.bin").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0] and sizes[2] < 0.4 * sizes[0]


def test_settings_and_assets_are_written(tmp_path):
    source = tmp_path / "words.txt"
    source.write_text("a b")
    path = tmp_path / "model"
    export_openvino(
        small_model(num_layers=1, memory_length=4),
        str(path),
        settings={"step": 9},
        assets={"words.txt": str(source)},
    )
    settings = json.loads((path / "assets" / "settings.json").read_text())
    assert settings["step"] == 9 and settings["memory_length"] == 4
    assert (path / "assets" / "words.txt").read_text() == "a b"


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({"attention_type": "shaw", "max_positions": 9}, {}, "'shaw'"),
        ({"memory_length": 0}, {}, "memory_length=0"),
        (
            {"cold_start": "zeros", "normalize_first": True},
            {},
            "cold_start='zeros' and biases",
        ),
        ({}, {"weights_dtype": "int4"}, "weights_dtype='int4'"),
        ({}, {"num_rows": 0}, "`num_rows`"),
        ({}, {"settings": {"num_rows": 2}}, "keys that the export writes"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    config, arguments, message, tmp_path
):
    model = small_model(num_layers=1, **config)
    for weight in model.weights:
        weight.assign(weight + 0.1)  # norms have offsets after training
    with pytest.raises(ValueError, match=message):
        export_openvino(model, str(tmp_path / "model"), **arguments)
    assert not (tmp_path / "model").exists()
