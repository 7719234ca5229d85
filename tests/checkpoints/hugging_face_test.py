"""Folders of Hugging Face, read and written."""

import json

import numpy as np
import pytest
from factories import change_json
from factories import small_model
from safetensors.numpy import load_file
from stored_models import GOLDEN
from stored_models import assert_same_weights
from stored_models import copy_stored
from stored_models import stored_config

from txl_keras.checkpoints import hugging_face
from txl_keras.checkpoints import load_hugging_face
from txl_keras.checkpoints import load_hugging_face_xlnet
from txl_keras.checkpoints import load_tf1
from txl_keras.checkpoints import save_hugging_face
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier

pytestmark = pytest.mark.every_backend

NAME = "hf_wt103_like"


@pytest.fixture(scope="module")
def stored():
    return load_hugging_face(GOLDEN / NAME)


@pytest.fixture
def folder(tmp_path):
    return copy_stored(NAME, tmp_path)


def assert_same_model(model, expected):
    ours, theirs = model.get_config(), expected.get_config()
    for config in (ours, theirs):
        del config["name"], config["backbone"]["config"]["name"]
    assert ours == theirs
    assert_same_weights(model, expected)


@pytest.mark.parametrize(
    "name", ["hf_plain", "hf_shared_biases", "hf_mixed_projections"]
)
def test_a_written_model_is_read_back_bit_for_bit(name, tmp_path):
    model = load_hugging_face(GOLDEN / name)
    save_hugging_face(model, tmp_path / "export")
    assert_same_model(load_hugging_face(tmp_path / "export"), model)


def test_tables_that_are_not_tied_are_read_back(tmp_path):
    ties = {"tie_embeddings": False, "tie_projections": False}
    clusters = {"cutoffs": (3, 7), "div_val": 2, "cold_start": "zeros"}
    model = small_model(**clusters, **ties)
    save_hugging_face(model, tmp_path / "export")
    assert_same_weights(load_hugging_face(tmp_path / "export"), model)


@pytest.mark.usefixtures("tensorflow_installed")
def test_the_epsilon_of_tensorflow_is_written(tmp_path):
    name = "wt103_base_like"
    model = load_tf1(GOLDEN / name, stored_config(name))
    save_hugging_face(model, tmp_path / "export")
    exported = load_hugging_face(tmp_path / "export")
    assert exported.backbone.layer_norm_epsilon == 1e-12
    assert_same_model(exported, model)


def test_the_export_has_what_the_library_looks_for(stored, tmp_path):
    folder = tmp_path / "a" / "b"
    save_hugging_face(stored, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["b"]
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["config.json", "model.safetensors"]
    exported = load_file(folder / "model.safetensors")
    original = load_file(GOLDEN / NAME / "model.safetensors")
    # Tied tensors are stored once; the library ties them again.
    tied = {f"crit.out_layers.{j}.weight" for j in range(4)}
    tied |= {f"crit.out_projs.{j}" for j in (1, 2, 3)}
    assert set(original) - set(exported) == tied
    for name, tensor in exported.items():
        np.testing.assert_allclose(tensor, original[name], rtol=1e-6)
    config = json.loads((folder / "config.json").read_text())
    expected = stored_config(NAME)
    for key in ("eos_token_id", "init", "init_range", "transformers_version"):
        del expected[key]
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"cold_start": "masked"}, "cold_start='masked'"),
        ({"same_length": True}, "one key fewer"),
        ({"normalize_output": True}, "normalize_output=True"),
        ({"attention_type": "shaw", "max_positions": 4}, "type='shaw'"),
        ({"project_same_dim": False}, "project_same_dim=False"),
    ],
)
def test_what_cannot_be_expressed_is_refused(
    stored, changes, message, tmp_path
):
    backbone = stored.backbone
    config = {**backbone.get_config(), **changes}
    model = TransformerXLCausalLM(type(backbone).from_config(config))
    with pytest.raises(ValueError, match=message):
        save_hugging_face(model, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_a_classifier_is_refused(stored, tmp_path):
    model = TransformerXLTextClassifier(stored.backbone, num_classes=2)
    with pytest.raises(ValueError, match="Received: TransformerXLTextClas"):
        save_hugging_face(model, tmp_path / "export")


def test_adapted_and_quantized_models_are_refused(tmp_path):
    model = load_hugging_face(GOLDEN / NAME)
    model.backbone.enable_lora(2)
    with pytest.raises(ValueError, match="lora_kernel_a"):
        save_hugging_face(model, tmp_path / "export")
    model = load_hugging_face(GOLDEN / NAME)
    model.quantize("int8")
    with pytest.raises(ValueError, match="kernel_scale"):
        save_hugging_face(model, tmp_path / "export")


def test_nothing_is_left_if_writing_fails(stored, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(hugging_face, "write_safetensors", fail)
    with pytest.raises(OSError, match="disk full"):
        save_hugging_face(stored, tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_missing_keys_take_the_defaults_of_the_library(stored, folder):
    path = folder / "config.json"
    change_json(path, {"tie_projs": ..., "layer_norm_epsilon": ...})
    assert_same_model(load_hugging_face(folder), stored)
    change_json(path, {"same_length": ..., "clamp_len": ..., "mem_len": ...})
    backbone = load_hugging_face(folder).backbone
    assert backbone.same_length == "pytorch"
    assert backbone.clamp_length == 1000
    assert backbone.memory_length == 1600


def test_without_weights_other_sizes_are_made(stored, folder):
    sizes = {"num_layers": stored.backbone.num_layers + 1, "hidden_dim": 12}
    model = type(stored).from_preset(folder, load_weights=False, **sizes)
    assert {name: getattr(model.backbone, name) for name in sizes} == sizes
    # What no weight depends on may be what the folder's config lacks.
    change_json(folder / "config.json", {"mem_len": 0, "same_length": True})
    model = type(stored).from_preset(
        folder, load_weights=False, memory_length=7, num_layers=1
    )
    assert model.backbone.memory_length == 7
    with pytest.raises(ValueError, match="does not fit its configuration"):
        type(stored).from_preset(folder, memory_length=7, **sizes)


@pytest.mark.tensorflow
def test_a_home_folder_is_found_and_a_bucket_refused(
    stored, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_hugging_face(stored, "~/written")
    assert_same_model(type(stored).from_preset("~/written"), stored)
    save_hugging_face(stored, "ram://a/written")
    with pytest.raises(ValueError, match="must be local.*ram://a/written"):
        type(stored).from_preset("ram://a/written")


TRANSFO_XL = load_hugging_face, NAME
XLNET = load_hugging_face_xlnet, "hf_xlnet_bi"


@pytest.mark.parametrize(
    "model, changes, message",
    [
        (TRANSFO_XL, {"attn_type": 1}, "attn_type=1"),
        (TRANSFO_XL, {"model_type": "gpt2"}, "gpt2"),
        (TRANSFO_XL, {"d_head": 1.5}, "d_head"),
        (TRANSFO_XL, {"d_model": [3]}, "d_model"),
        (TRANSFO_XL, {"cutoffs": {"5": 1}}, "cutoffs"),
        (TRANSFO_XL, {"div_val": "2"}, "div_val"),
        (TRANSFO_XL, {"dropout": 1}, "dropout"),
        (TRANSFO_XL, {"tie_projs": True}, "tie_projs=True"),
        (TRANSFO_XL, {"layer_norm_epsilon": -1}, "layer_norm_epsilon"),
        (TRANSFO_XL, {"vocab_size": ..., "n_head": ...}, "'n_token', 'n_he"),
        (XLNET, {"model_type": "bert"}, "model_type 'xlnet'.*'bert'"),
        (XLNET, {"bi_data": True}, "bi_data"),
        (XLNET, {"same_length": True, "attn_type": "uni"}, "same_length"),
        (XLNET, {"ff_activation": "relu"}, "ff_activation='relu'"),
        (XLNET, {"attn_type": "tri"}, "attn_type='tri'"),
        (XLNET, {"n_head": "3"}, "n_head='3'"),
    ],
)
def test_a_configuration_that_is_not_understood_is_refused(
    model, changes, message, tmp_path
):
    load, name = model
    change_json(copy_stored(name, tmp_path) / "config.json", changes)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_an_empty_folder_is_an_error(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="pytorch_model.bin"):
        load_hugging_face(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="config.json"):
        load_hugging_face(folder)
