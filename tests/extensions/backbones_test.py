"""What holds for every backbone, tested with those of the extensions."""

import numpy as np
import pytest
from factories import feature_backbone
from factories import random_ids
from factories import small_backbone
from factories import small_model
from models import every_model_test
from models import generate_test
from models import not_finite_test
from models import padding_test
from models import segment_reader_test
from tpu import compiling_test

from txl_keras.extensions.compressive import CompressiveBackbone
from txl_keras.extensions.gtrxl import GTrXLBackbone
from txl_keras.extensions.same_layer import SameLayerBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.training.utilization import model_flops

BACKBONES = {
    "compressive": {"make": CompressiveBackbone, "compressed_length": 4},
    "gtrxl": {"make": GTrXLBackbone},
    "same_layer": {"make": SameLayerBackbone},
}
EVERY = pytest.mark.parametrize("options", BACKBONES.values(), ids=BACKBONES)


@EVERY
def test_padding_has_no_influence(options):
    if options["make"] is not GTrXLBackbone:  # a gate sees one step
        padding_test.test_a_row_reads_as_if_there_were_no_padding(
            feature_backbone(**options, num_layers=1)
        )
    if options["make"] is not SameLayerBackbone:  # its steps are the core's
        not_finite_test.test_padding_has_no_influence(options)


@EVERY
def test_what_is_not_valid_may_be_anything(options):
    not_finite_test.test_a_reset_equals_a_cold_start_in_every_bit(options)
    not_finite_test.test_entries_that_are_not_valid_may_be_anything(options)


# The two others keep and read memory as the core does.
def test_a_text_is_continued():
    generate_test.test_a_text_is_continued_without_reading_it_again(
        {**BACKBONES["compressive"], "memory_length": 40}, "beam"
    )


def test_a_functional_model_hands_memory_on(tmp_path):
    every_model_test.test_a_functional_model_hands_memory_on(
        BACKBONES["compressive"], tmp_path
    )


def test_steps_are_static():
    for step in (compiling_test.train_step, compiling_test.evaluation_step):
        compiling_test.test_steps_are_static(step, BACKBONES["compressive"], {})


# `compressive_test` loads a preset with more slots.
@pytest.mark.parametrize("name", ["gtrxl", "same_layer"])
def test_a_preset_is_loaded_as_its_class(name, tmp_path):
    options = BACKBONES[name]
    model = small_model(num_layers=1, **options)
    model.save_to_preset(tmp_path / "preset")
    loaded = TransformerXLCausalLM.from_preset(str(tmp_path / "preset"))
    assert type(loaded.backbone) is options["make"]
    ids = random_ids(2, 5)
    np.testing.assert_array_equal(loaded(ids), model(ids))
    backbone = TransformerXLBackbone.from_preset(str(tmp_path / "preset"))
    assert backbone.get_config() == loaded.backbone.get_config()


def test_cached_reading_has_the_gates():
    backbone = small_backbone(num_layers=1, make=GTrXLBackbone)
    segment_reader_test.check_states(backbone)


def test_gates_count_as_operations():
    plain, gated = (
        model_flops(small_model(num_layers=1, make=make), 4, 6)
        for make in (TransformerXLBackbone, GTrXLBackbone)
    )
    size = small_backbone().hidden_dim
    assert gated - plain == 4 * 2 * 12 * 6 * size**2
