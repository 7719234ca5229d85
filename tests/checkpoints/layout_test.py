"""Tables of foreign tensors, in both directions."""

import numpy as np
import pytest
from factories import small_model
from stored_models import assert_same_weights
from stored_models import load_arrays
from stored_models import stored_arrays
from stored_models import stored_config

from txl_keras.checkpoints.layout import read
from txl_keras.checkpoints.layout import write
from txl_keras.checkpoints.transformer_xl import ORIGINAL
from txl_keras.checkpoints.transformer_xl import make_layout
from txl_keras.tensor_files import Tensors
from txl_keras.weights import weights_by_name

NAME = "original_pytorch_wt103_like"


@pytest.mark.parametrize(
    "config, tied",
    [
        ({"cutoffs": [3, 7], "div_val": 2}, True),
        ({"cutoffs": [3, 7], "div_val": 2}, False),
        ({"cutoffs": [3, 7], "embedding_dim": 6}, False),
        ({"attention_type": "shaw", "max_positions": 7}, True),
        (
            {"attention_type": "al_rfou", "max_positions": 4, "head_dim": 4},
            False,
        ),
        ({"tie_attention_biases": False}, True),
    ],
)
def test_what_is_written_is_read_back(config, tied):
    def build(arguments):
        ties = {"tie_embeddings": tied, "tie_projections": tied}
        return small_model(memory_length=0, **ties, **arguments)

    def layout(model, num_layers):
        return make_layout(ORIGINAL, model, num_layers)

    arguments = {"num_layers": 2, **config}
    first = build(arguments)
    rng = np.random.default_rng(0)
    for weight in first.weights:
        weight.assign(rng.normal(size=weight.shape))
    arrays = write(first, layout(first, 2))
    shapes = {name: array.shape for name, array in arrays.items()}
    tensors = Tensors(shapes, arrays.__getitem__, num_bytes=1e9)
    second = read(build, arguments, layout, tensors, "arrays")
    ours = weights_by_name(first)
    for name, weight in weights_by_name(second).items():
        np.testing.assert_array_equal(weight, ours[name], name)


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
