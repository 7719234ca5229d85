"""Tables of foreign tensors: what may be missing, and what is told."""

import numpy as np
import pytest
from stored_models import assert_same_weights
from stored_models import load_arrays
from stored_models import stored_arrays
from stored_models import stored_config

NAME = "original_pytorch_wt103_like"


def check_problems(arrays, *lines):
    with pytest.raises(ValueError) as error:
        load_arrays(arrays, stored_config(NAME))
    message = str(error.value)
    assert f"{len(lines)} problem(s)" in message
    for line in lines:
        assert line in message


def test_all_problems_are_told_at_once():
    arrays = stored_arrays(NAME)
    del arrays["r_r_bias"], arrays["layers.1.pos_ff.CoreNet.3.bias"]
    arrays["layers.3.new"] = np.zeros((2, 3))
    arrays["crit.cluster_weight"] = np.zeros((4, 32))
    check_problems(
        arrays,
        "missing: r_r_bias",
        "missing: layers.1.pos_ff.CoreNet.3.bias of shape (32,)",
        "unexpected: 'layers.3.new' of shape (2, 3)",
        "wrong shape: crit.cluster_weight is (4, 32), expected (3, 32)",
    )
    arrays = stored_arrays(NAME)
    arrays["r_w_bias"] = arrays["r_w_bias"] * np.nan
    bias = "layers.0.pos_ff.CoreNet.3.bias"
    arrays[bias] = np.full(arrays[bias].shape, 1e300)
    arrays["crit.out_projs.1"] = arrays["crit.out_projs.1"] + 1
    check_problems(
        arrays,
        "not finite: r_w_bias",
        f"not finite: {bias} holds NaN, infinity, or numbers that float32",
        "tied in the configuration, but different in the file: "
        "word_emb.emb_projs.1 and crit.out_projs.1",
    )


def test_shared_tensors_may_be_stored_once():
    arrays = stored_arrays(NAME)
    for j in range(4):
        del arrays[f"crit.out_layers.{j}.weight"]
    del arrays["word_emb.emb_projs.2"]  # its other name is left
    model = load_arrays(arrays, stored_config(NAME))
    whole = load_arrays(stored_arrays(NAME), stored_config(NAME))
    assert_same_weights(model, whole)
