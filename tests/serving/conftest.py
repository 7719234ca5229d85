"""A small language model and its SavedModel, for all tests of this folder."""

import numpy as np
import pytest
from factories import seed_weights
from factories import small_backbone
from script_runs import made_once

from txl_keras.models import TransformerXLCausalLM
from txl_keras.serving import export


@pytest.fixture(scope="session")
def make_model():
    """Function of settings: a model of one block of three heads."""

    def make(dtype=None, **changes):
        seed_weights(3)
        sizes = {"num_layers": 1, "num_heads": 3, **changes}
        backbone = small_backbone(dtype, **sizes)
        for block in backbone.blocks:
            # Otherwise the norm of an empty entry is zero, as the entry is.
            block._attention_norm.beta.assign(np.arange(8) / 10)
        model = TransformerXLCausalLM(backbone)
        for bias in model.softmax.biases:
            bias.assign(np.linspace(-1, 1, bias.shape[0]))
        return model

    return make


@pytest.fixture(scope="session")
def model(make_model):
    return make_model()


@pytest.fixture(scope="session")
def path(model, tmp_path_factory):
    """Path of the SavedModel of `model`."""

    def write(path):
        export(
            model,
            str(path),
            max_segment_length=20,
            num_slots=16,
            max_batch_size=16,
            max_generate_length=15,
        )

    return str(made_once(write, "saved_model", tmp_path_factory))
