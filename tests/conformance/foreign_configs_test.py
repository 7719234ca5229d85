"""Wrong fields of a configuration of Hugging Face: an error names each."""

import json

import pytest

from txl_keras.checkpoints import load_hugging_face
from txl_keras.checkpoints import save_hugging_face
from txl_keras.models import TransformerXLCausalLM

SIZES = [0, -1, 1.5, "3", [3], True, 10**9, 10**18]
WRONG = {
    **dict.fromkeys(("n_layer", "n_head", "d_model"), SIZES),
    **dict.fromkeys(("d_head", "d_inner", "vocab_size"), SIZES),
    "mem_len": [-1, 1.5, "3", 10**12],
    "cutoffs": [[25], "5", [0.5], {"5": 1}, 5],
    "div_val": [0, -1, 1.5, "2"],
    "dropout": [-1, 1, "0.1", [0.1]],
    "layer_norm_epsilon": [-1, "1"],
    "model_type": ["xlnet", 5],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hugging_face") / "model"
    model = TransformerXLCausalLM.from_preset(
        "quickstart", num_layers=1, vocabulary_size=19, cold_start="zeros"
    )
    save_hugging_face(model, folder)
    return folder


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_named(field, folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    # `n_token` is the name of the original code.
    names = "vocab_size|n_token" if field == "vocab_size" else field
    for value in WRONG[field]:
        path.write_text(json.dumps({**config, field: value}))
        with pytest.raises(ValueError, match=rf"\b({names})\b"):
            load_hugging_face(folder)
    path.write_text(json.dumps(config))
    assert load_hugging_face(folder).backbone.num_layers == 1
