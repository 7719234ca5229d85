"""Files of PyTorch: what is understood, and what is refused unread."""

import argparse
import sys

import pytest
from stored_models import assert_same_weights
from stored_models import load_arrays
from stored_models import save_torch
from stored_models import stored_arrays
from stored_models import stored_config
from stored_models import zipped

from txl_keras.checkpoints import load_pytorch

NAME = "original_pytorch_enwik8_like"


def test_code_in_a_file_is_not_run(tmp_path):
    """`vocabularies_test` has more such files."""
    marker = tmp_path / "marker"
    command = f"Vtouch {marker}\n".encode()
    pickled = b"\x80\x02}Va\ncos\nsystem\n(" + command + b"tRs."
    path = tmp_path / "model.pt"
    others = {"model/version": "3\n", "model/byteorder": "little"}
    path.write_bytes(zipped(("model/data.pkl", pickled), *others.items()))
    with pytest.raises(ValueError, match="system.*nothing .* was executed"):
        load_pytorch(path, stored_config(NAME))
    assert not marker.exists()
    with pytest.raises(FileNotFoundError):
        load_pytorch(tmp_path / "no.pt", stored_config(NAME))


@pytest.mark.torch
def test_a_checkpoint_of_nvidia_brings_its_configuration(tmp_path):
    torch = pytest.importorskip("torch")
    name = "nvidia_untied"
    arrays = stored_arrays(name)
    checkpoint = {
        "args": argparse.Namespace(work_dir="x", betas=[1, 2]),
        "model_config": {**stored_config(name), "dtype": torch.float16},
        "model_state": {
            key: torch.tensor(value) for key, value in arrays.items()
        },
        "memory": None,
        "epoch": 3,
    }
    torch.save(checkpoint, tmp_path / "checkpoint_best.pt")
    model = load_pytorch(tmp_path / "checkpoint_best.pt", memory_length=3)
    assert model.backbone.memory_length == 3
    assert_same_weights(model, load_arrays(arrays, stored_config(name)))


@pytest.mark.torch
@pytest.mark.parametrize("in_archive", [True, False])
def test_a_whole_module_is_read_as_its_tensors(
    in_archive, tmp_path, monkeypatch
):
    torch = pytest.importorskip("torch")
    module = type(sys)("mem_transformer")

    class MemTransformerLM(torch.nn.Module):
        pass

    MemTransformerLM.__module__ = "mem_transformer"
    MemTransformerLM.__qualname__ = "MemTransformerLM"
    module.MemTransformerLM = MemTransformerLM
    monkeypatch.setitem(sys.modules, "mem_transformer", module)
    model = MemTransformerLM()
    arrays = stored_arrays(NAME)
    for name, array in arrays.items():
        *path, last = name.split(".")
        owner = model
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Sequential())
            owner = owner._modules[part]
        owner.register_parameter(last, torch.nn.Parameter(torch.tensor(array)))
    path = tmp_path / "model.pt"
    torch.save(model, path, _use_new_zipfile_serialization=in_archive)
    monkeypatch.delitem(sys.modules, "mem_transformer")
    loaded = load_pytorch(path, stored_config(NAME))
    assert_same_weights(loaded, load_arrays(arrays, stored_config(NAME)))


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_becomes_single(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    state = {
        f"module.{name}": torch.tensor(array).to(getattr(torch, dtype))
        for name, array in stored_arrays(NAME).items()
    }
    torch.save(state, tmp_path / "model.pt")
    model = load_pytorch(tmp_path / "model.pt", stored_config(NAME))
    rounded = {
        name.removeprefix("module."): tensor.float().numpy()
        for name, tensor in state.items()
    }
    del rounded["pos_emb.inv_freq"]  # no weight
    assert model.weights[0].dtype == "float32"
    assert_same_weights(model, load_arrays(rounded, stored_config(NAME)))


@pytest.mark.torch
def test_views_of_one_storage_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    arrays = stored_arrays(NAME)
    flat = torch.zeros(3 + sum(array.size for array in arrays.values()))
    views, at = {}, 3
    for name, array in arrays.items():
        # As a buffer of all parameters has them, the last axis first.
        view = flat[at : at + array.size].reshape(array.shape[::-1])
        view = view.permute(*reversed(range(array.ndim)))
        views[name] = view.copy_(torch.tensor(array))
        at += array.size
    torch.save(views, tmp_path / "model.pt")
    model = load_pytorch(tmp_path / "model.pt", stored_config(NAME))
    assert_same_weights(model, load_arrays(arrays, stored_config(NAME)))


@pytest.mark.torch
def test_a_file_without_configuration_needs_one(tmp_path):
    path = save_torch(stored_arrays(NAME), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="`config` must be passed"):
        load_pytorch(path)


@pytest.mark.torch
def test_what_is_no_state_dict_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"model": {}, "step": 3}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="'model', .* a dict that is no"):
        load_pytorch(tmp_path / "model.pt", stored_config(NAME))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ext_len": 3}, "ext_len=3"),
        ({"attn_type": 4}, "attn_type=4"),
        ({"sample_softmax": 10}, "sample_softmax=10"),
        ({"attn_type": 2, "mem_len": 6}, "pass memory_length=0"),
        ({"attn_type": 2, "mem_len": 0, "pre_lnorm": True}, "not the queries"),
        ({"same_length": True, "mem_len": 0}, "none without memory"),
    ],
)
def test_what_the_original_does_otherwise_is_refused(changes, message):
    config = {**stored_config(NAME), **changes}
    with pytest.raises(ValueError, match=message):
        load_arrays(stored_arrays(NAME), config)


def test_a_model_of_absolute_positions_is_loaded_without_memory():
    name = "original_pytorch_vaswani"
    config = {**stored_config(name), "mem_len": 8}
    model = load_arrays(stored_arrays(name), config, memory_length=0)
    assert model.backbone.memory_length == 0


def test_missing_sizes_take_the_defaults_of_the_original():
    config = stored_config(NAME)
    for key in ("d_embed", "div_val", "tie_projs", "cutoffs", "attn_type"):
        del config[key]
    model = load_arrays(stored_arrays(NAME), config)
    assert_same_weights(
        model, load_arrays(stored_arrays(NAME), stored_config(NAME))
    )
