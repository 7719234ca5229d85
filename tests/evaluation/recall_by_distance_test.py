"""Recall by distance: measured on models that learn, or do not."""

import keras
import numpy as np
import pytest
from factories import random_ids
from factories import seed_weights
from factories import small_model

from txl_keras.data import RecallTask
from txl_keras.data import Segments
from txl_keras.evaluation import attended_share
from txl_keras.evaluation import largest_reach
from txl_keras.evaluation import recall_by_distance
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM

BATCH_SIZE, SEGMENT_LENGTH, MEMORY_LENGTH = 16, 8, 24
EDGES = [1, 9, 24, 33, 49, 65]
TASK = RecallTask(num_keys=3, num_values=4, max_distance=64)


def build(memory_length):
    seed_weights(0)
    backbone = TransformerXLBackbone(
        vocabulary_size=TASK.vocabulary_size,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=48,
        memory_length=memory_length,
        initializer_stddev=0.1,
    )
    return TransformerXLCausalLM(backbone)


def measure(model, tokens, edges=EDGES):
    return recall_by_distance(
        model, TASK, tokens, BATCH_SIZE, SEGMENT_LENGTH, edges
    )


def trained(memory_length, num_steps):
    model = build(memory_length)
    tokens = TASK.stream(BATCH_SIZE * SEGMENT_LENGTH * num_steps + 1, seed=1)
    segments = Segments(tokens, BATCH_SIZE, SEGMENT_LENGTH, drop_remainder=True)
    dataset = segments.dataset(num_steps=num_steps).map(TASK.score_answers)
    model.compile(
        keras.optimizers.Adam(3e-3, epsilon=1e-9, global_clipnorm=1.0)
    )
    model.fit(dataset, verbose=0)
    return model


class Copier:
    """Answers with the value at a fixed distance, whatever it reads."""

    def __init__(self, tokens, distance):
        self._segments = Segments(
            tokens, BATCH_SIZE, SEGMENT_LENGTH, drop_remainder=True
        )
        distances = Segments(
            TASK.distances(tokens),
            BATCH_SIZE,
            SEGMENT_LENGTH,
            drop_remainder=True,
        )
        self._knows = distances.arrays()[1] <= distance

    def predict(self, segments, verbose):
        targets = np.where(self._knows, segments.arrays()[1], 0)
        return np.eye(TASK.vocabulary_size)[targets]


def test_all_answers_of_a_range_count_alike():
    tokens = TASK.stream(20_000, seed=3)
    parts = measure(Copier(tokens, 32), tokens)
    ranges = [(part["start"], part["stop"]) for part in parts]
    assert ranges == [(1, 9), (9, 24), (24, 33), (33, 49), (49, 65)]
    assert [part["accuracy"] for part in parts] == [1, 1, 1, 0, 0]
    # The first 9 segments of each row are not measured: 65 tokens.
    distances = TASK.distances(tokens)
    rows = [r * 19_999 // BATCH_SIZE for r in range(BATCH_SIZE)]
    length = 19_999 // BATCH_SIZE // SEGMENT_LENGTH * SEGMENT_LENGTH
    measured = [distances[r + 73 : r + length + 1] for r in rows]
    measured = np.concatenate(measured)
    for part in parts:
        is_in = (measured >= part["start"]) & (measured < part["stop"])
        assert part["num_answers"] == is_in.sum()


def test_untrained_models_do_not_beat_chance():
    parts = measure(build(MEMORY_LENGTH), TASK.stream(9000, seed=3))
    assert all(part["accuracy"] < 0.5 for part in parts)


# About 20 seconds.
@pytest.mark.large
def test_memory_is_what_is_recalled():
    tokens = TASK.stream(40_000, seed=2)
    remembering, forgetful = (
        [part["accuracy"] for part in measure(trained(length, 1500), tokens)]
        for length in (MEMORY_LENGTH, 0)
    )
    # All within memory, chance beyond memory and segment.
    assert min(remembering[:2]) > 0.9
    assert 0.4 < remembering[2] < 0.95
    assert max(remembering[3:]) < 0.4
    assert max(forgetful[1:]) < 0.4


def test_attended_share_counts_the_tokens_that_attend():
    length, memory = 5, 7
    distances = list(range(1, 15))
    for same_length in (False, True):
        expected = [
            np.mean(
                [d <= memory + (0 if same_length else t) for t in range(length)]
            )
            for d in distances
        ]
        shares = attended_share(distances, length, memory, same_length)
        np.testing.assert_allclose(shares, expected)


def test_a_stream_without_answers_at_a_distance_is_refused():
    tokens = TASK.stream(6000)
    with pytest.raises(ValueError, match="distances from 200 to 299"):
        measure(None, tokens, [1, 200, 300])  # before it reads
    for edges in ([1], [3, 2], [0, 4], "ab"):
        with pytest.raises(ValueError, match="`edges` must be"):
            measure(None, tokens, edges)


def test_no_segment_has_no_reach():
    for sizes, name in (((0, 3, 3), "num_layers"), ((2, 0, 3), "segment_leng")):
        with pytest.raises(ValueError, match=f"`{name}.* must be an integer"):
            largest_reach(*sizes)


@pytest.mark.parametrize(
    ("memory_length", "same_length"),
    [
        (3, False),
        (6, True),
        # A second each.
        pytest.param(6, False, marks=pytest.mark.large),
        pytest.param(3, True, marks=pytest.mark.large),
    ],
)
def test_no_token_beyond_the_largest_reach_matters(memory_length, same_length):
    length, num_segments = 4, 8
    model = small_model(
        num_layers=2, memory_length=memory_length, same_length=same_length
    )
    tokens = random_ids(length * num_segments)

    def last_hidden(tokens):
        memory = None
        for segment in np.split(tokens, num_segments):
            hidden, memory = model.backbone(segment[None], memory=memory)
        return hidden[0, -1].numpy()

    hidden = last_hidden(tokens)
    reach = largest_reach(2, length, memory_length, same_length)
    for distance, is_seen in ((reach, True), (reach + 1, False)):
        changed = tokens.copy()
        changed[-1 - distance] = (changed[-1 - distance] + 1) % 11
        differs = (last_hidden(changed) != hidden).any()
        assert differs == is_seen
