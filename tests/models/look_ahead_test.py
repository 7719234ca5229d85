"""Attention to later tokens of the segment: `look_ahead`."""

import numpy as np
import pytest
from attention_loops import random
from factories import feature_backbone
from factories import random_ids
from factories import small_backbone

from txl_keras.models import SegmentReader
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier

pytestmark = pytest.mark.every_backend

T, M, D = 9, 6, 16


@pytest.mark.parametrize(
    "settings",
    [
        {"attention_type": "relative"},
        {"attention_type": "shaw", "max_positions": M + T},
        {"attention_type": "vaswani", "memory_length": 0},
        {"attention_type": "al_rfou", "memory_length": 0, "max_positions": T},
    ],
    ids=lambda settings: settings["attention_type"],
)
def test_layers_add_up_what_they_look_ahead(settings):
    backbone = feature_backbone(num_layers=2, look_ahead=2, **settings)
    memory = None
    if backbone.remembers:
        _, memory = backbone(embeddings=np.repeat(random(1, M, D), T, 0))
    x = np.repeat(random(1, T, D, seed=1), T, axis=0)
    hidden, after = backbone(embeddings=x, memory=memory)
    # Another token j in row j.
    j = np.arange(T)[:, None]
    x[np.arange(T), np.arange(T)] *= -1
    changed, _ = backbone(embeddings=x, memory=memory)
    differs = np.abs(np.array(hidden - changed)).max(axis=-1) > 1e-5
    np.testing.assert_array_equal(differs, np.arange(T) >= j - 2 * 2)
    if memory is not None:
        # The memory of the first block is its inputs, as ever.
        tail = after.states[0][0, -M:]
        np.testing.assert_allclose(tail, random(1, T, D, seed=1)[0, -M:])


def test_a_classifier_may_look_ahead():
    backbone = small_backbone(look_ahead=2)
    model = TransformerXLTextClassifier(backbone, 3, segment_length=4)
    ids = random_ids(2, 7)
    beside = model((ids, np.array([5, 7])))
    assert beside.shape == (2, 3)
    np.testing.assert_allclose(beside[:1], model(ids[:1, :5]), atol=1e-5)


def test_what_would_show_targets_is_refused():
    backbone = small_backbone(look_ahead=1)
    with pytest.raises(ValueError, match="`backbone` must have look_ahead=0"):
        TransformerXLCausalLM(backbone)
    with pytest.raises(ValueError, match="`look_ahead` must be 0 where keys"):
        SegmentReader(backbone, batch_size=2, segment_length=4)
