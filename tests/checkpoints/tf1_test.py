"""Checkpoints of TensorFlow 1: where they are, what else is in them."""

import json
import shutil

import numpy as np
import pytest
from factories import random_ids
from factories import small_model
from stored_models import GOLDEN
from stored_models import save_tf1
from stored_models import stored_config

from txl_keras.checkpoints import load_tf1
from txl_keras.checkpoints.layout import write
from txl_keras.checkpoints.transformer_xl import TF1
from txl_keras.checkpoints.transformer_xl import make_layout

NAME = "lm1b_large_like"


@pytest.fixture
def folder(tmp_path):
    """A copy of a stored checkpoint."""
    for path in (GOLDEN / NAME).glob("model.ckpt*"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["", "model.ckpt", "model.ckpt.index"])
def test_a_folder_or_a_file_stands_for_the_prefix(folder, name):
    assert load_tf1(folder / name, stored_config(NAME)).count_params() > 0


def test_a_prefix_must_be_one_checkpoint(folder):
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(
            folder / f"model.ckpt.{suffix}", folder / f"model.ckpt-9.{suffix}"
        )
    with pytest.raises(ValueError, match="model.ckpt-9"):
        load_tf1(folder, stored_config(NAME))
    with pytest.raises(ValueError, match="none"):
        load_tf1(folder / "no" / "folder", stored_config(NAME))
    with pytest.raises(ValueError, match=r"`prefix` must not have any of"):
        load_tf1(folder.rename(folder.parent / "a[b]"), stored_config(NAME))


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_file_that_was_cut_short_is_an_error(folder, suffix):
    path = folder / f"model.ckpt.{suffix}"
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(ValueError, match="cannot be read"):
        load_tf1(folder / "model.ckpt", stored_config(NAME))


def test_the_configuration_may_be_a_file(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(stored_config(NAME)))
    assert load_tf1(folder / "model.ckpt", path).count_params() > 0
    path.write_text("{")
    with pytest.raises(ValueError, match="not a JSON file"):
        load_tf1(folder / "model.ckpt", path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        load_tf1(folder / "model.ckpt", path)


def test_keys_without_effect_are_warned_about():
    config = {**stored_config(NAME), "clamp_length": 5}
    with pytest.warns(UserWarning, match="'clamp_length'.*no effect"):
        load_tf1(GOLDEN / NAME, config)


def test_shared_projections_by_the_flag_of_the_original():
    name = "wt103_large_like"
    config = stored_config(name)
    del config["tie_projs"]
    config["proj_share_all_but_first"] = True
    model = load_tf1(GOLDEN / name, config)
    assert model.softmax.tie_projections == (False, True, True, True)


@pytest.mark.parametrize(
    "cutoffs, tie_projs, projections",
    [
        # Without cutoffs there is nothing to untie.
        ([], [False], ["adaptive_embed/proj_W"]),
        (
            [4, 6],
            [False, True],
            [
                "adaptive_embed/proj_W",
                "adaptive_softmax/cutoff_0/proj",
                "adaptive_softmax/cutoff_2/proj",
            ],
        ),
    ],
)
def test_one_projection_of_the_embedding_is_tied_or_not(
    tmp_path, cutoffs, tie_projs, projections
):
    # The sizes of `small_model`, in the original's words.
    sizes = {"n_token": 11, "n_head": 2, "d_model": 8, "d_head": 5}
    config = {**sizes, "n_layer": 1, "d_inner": 12, "mem_len": 6, "d_embed": 6}
    config |= {"cutoffs": cutoffs, "tie_projs": tie_projs}
    names = [f"transformer/{name}" for name in projections]
    tied = len(names) == 1 or [False, True, False]
    model = small_model(
        num_layers=1, embedding_dim=6, cutoffs=cutoffs, tie_projections=tied
    )
    tensors = write(model, make_layout(TF1, model))
    assert sorted(name for name in tensors if "proj" in name) == names
    save_tf1(tensors, tmp_path / "model.ckpt")
    loaded = load_tf1(tmp_path, config)
    ids = random_ids(2, 4)
    np.testing.assert_allclose(
        loaded.log_probs(ids, model.initial_memory(2))[0],
        model.log_probs(ids)[0],
        atol=1e-4,
    )


def test_what_no_weight_depends_on_may_be_changed():
    config = {**stored_config(NAME), "dropout": 0.2, "dropatt": 0.3}
    backbone = load_tf1(
        GOLDEN / NAME,
        config,
        dtype="mixed_bfloat16",
        memory_length=11,
        clamp_length=5,
        same_length=True,
        cold_start="masked",
    ).backbone
    assert backbone.memory_length == 11
    assert backbone.clamp_length == 5
    assert backbone.same_length is True
    assert backbone.cold_start == "masked"
    assert backbone.compute_dtype == "bfloat16"
    assert (backbone.dropout, backbone.attention_dropout) == (0.2, 0.3)
    with pytest.raises(ValueError, match="expected"):
        load_tf1(GOLDEN / NAME, config, num_heads=1)
