import keras
import numpy as np
import pytest
import tensorflow as tf

from txl_keras import samplers
from txl_keras.samplers import BeamSampler
from txl_keras.samplers import Sampler


def test_names_are_those_of_keras_hub():
    assert samplers.get("random") == Sampler()
    assert samplers.get("greedy") == Sampler(temperature=0)
    assert samplers.get("top_k") == Sampler(top_k=5)
    assert samplers.get("top_p") == Sampler(top_p=0.1)
    assert samplers.get("beam") == BeamSampler(num_beams=5)
    sampler = Sampler(typical_p=0.5)
    assert samplers.get(sampler) is sampler


@pytest.mark.parametrize("sampler", ["top-k", "GREEDY", None, 3, Sampler, {}])
def test_what_is_no_sampler_is_refused(sampler):
    with pytest.raises(ValueError, match="`sampler` must be one of random, "):
        samplers.get(sampler)


def test_a_tensor_is_refused_in_the_sampler_of_a_model():
    with pytest.raises(ValueError, match="`top_p` must be a number"):
        samplers.get(Sampler(top_p=tf.constant(0.5)))


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(np.float32(0.5), np.int64(3), 0.9, None, 1.5),
        Sampler(temperature=0, typical_p=1),
        BeamSampler(np.int32(3)),
    ],
)
def test_a_sampler_is_restored_from_its_config(sampler):
    config = keras.saving.serialize_keras_object(sampler)
    assert keras.saving.deserialize_keras_object(config) == sampler


def test_a_search_has_at_least_one_beam():
    with pytest.raises(ValueError, match="`num_beams`.*num_beams=0"):
        BeamSampler(num_beams=0)
