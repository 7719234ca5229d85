import numpy as np
from factories import random_ids
from factories import small_backbone

B, T = 4, 5


def test_normalize_output_normalizes_the_last_hidden_states():
    backbone = small_backbone(
        normalize_first=True, normalize_output=True, num_layers=1
    )
    hidden = np.array(backbone(random_ids(B, T))[0])
    np.testing.assert_allclose(hidden.mean(-1), np.zeros((B, T)), atol=1e-5)
    np.testing.assert_allclose(hidden.std(-1), np.ones((B, T)), atol=1e-3)
    raw = small_backbone(normalize_first=True, num_layers=1)
    raw.set_weights(
        [
            w.numpy()
            for w in backbone.weights
            if not w.path.split("/")[1].startswith("output_norm")
        ]
    )
    raw = np.array(raw(random_ids(B, T))[0])
    raw = (raw - raw.mean(-1, keepdims=True)) / raw.std(-1, keepdims=True)
    np.testing.assert_allclose(hidden, raw, atol=1e-2)


def test_a_masked_cold_start_of_any_length_is_no_memory():
    backbone = small_backbone(num_layers=2)
    ids = random_ids(B, T)
    expected, _ = backbone(ids, memory=backbone.initial_memory(B, 0))
    for memory_length in (1, 4, 13):
        memory = backbone.initial_memory(B, memory_length)
        hidden, _ = backbone(ids, memory=memory)
        np.testing.assert_allclose(hidden, expected, atol=1e-6)
    np.testing.assert_array_equal(
        backbone(ids)[0], backbone(ids, memory=backbone.initial_memory(B))[0]
    )
    # Zeros that are attended to are something else.
    zeros = small_backbone(num_layers=2, cold_start="zeros")
    zeros.set_weights(backbone.get_weights())
    assert np.abs(zeros(ids)[0] - expected).max(-1).min() > 1e-3
    # Memory that is half empty equals a shorter one.
    _, half_empty = backbone(ids[:, :3])
    _, full = backbone(ids[:, :3], memory=backbone.initial_memory(B, 3))
    np.testing.assert_allclose(
        backbone(ids[:, 3:], memory=half_empty)[0],
        backbone(ids[:, 3:], memory=full)[0],
        atol=1e-5,
    )
