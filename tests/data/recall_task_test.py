"""The recall task: what its streams hold and what can be known of them."""

import numpy as np
import pytest

from txl_keras.data import RecallTask
from txl_keras.data import Segments

TASK = RecallTask(num_keys=5, num_values=3, max_distance=40)


def answers(tokens):
    """Reads a stream token by token: distance and values of each answer.

    Also checks that a key is asked for once after each of its writes.
    """
    values, places, found = {}, {}, {}
    for place, token in enumerate(tokens.tolist()):
        if 1 <= token < 16:
            key, value = divmod(token - 1, 3)
            assert key not in values
            values[key], places[key] = value, place
        elif 16 <= token < 21 and place + 1 < len(tokens):
            key = token - 16
            answer = tokens[place + 1] - 21
            found[place + 1] = place - places[key], values.pop(key), answer
        elif token >= 21:
            assert place in found
    return found


def test_each_answer_is_the_value_of_the_latest_write():
    tokens = TASK.stream(6000, seed=4)
    assert (tokens.shape, tokens.dtype) == ((6000,), np.int32)
    assert set(tokens) == set(range(TASK.vocabulary_size)) == set(range(24))
    found = answers(tokens)
    assert all(value == answer for _, value, answer in found.values())
    expected = np.zeros(6000)
    for place, (distance, _, _) in found.items():
        expected[place] = distance
    np.testing.assert_array_equal(TASK.distances(tokens), expected)


def test_distances_are_log_uniform_and_a_third_of_tokens_are_events():
    tokens = TASK.stream(60_000)
    distances = TASK.distances(tokens)
    distances = distances[distances > 0]
    # One in each of two octaves of 1 to 40 for one in another.
    shares = [
        np.mean((distances >= low) & (distances < 2 * low))
        for low in (2.5, 5, 10, 20)
    ]
    assert shares == pytest.approx([np.log(2) / np.log(41)] * 4, abs=0.06)
    assert distances.max() < 60
    assert 0.15 < np.mean(tokens > 0) < 0.4


def test_a_stream_is_a_function_of_its_seed():
    first, again, other = (TASK.stream(500, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_answers_without_a_write_have_no_distance():
    # The query of key 1 comes before any write of it.
    assert TASK.distances([17, 23, 4, 17, 21]).tolist() == [0, 0, 0, 0, 1]


def test_only_answers_are_scored():
    tokens = TASK.stream(4 * 7 * 9 + 1)
    segments = Segments(tokens, 4, 7, drop_remainder=True)
    dataset = segments.dataset(num_steps=9).map(TASK.score_answers)
    total = 0
    for batch in dataset.as_numpy_iterator():
        is_answer = batch["targets"] >= 21
        np.testing.assert_array_equal(batch["weights"], is_answer)
        assert batch["num_targets"] == is_answer.sum()
        total += is_answer.sum()
    assert total == (tokens >= 21).sum() > 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_keys": 0}, "`num_keys`"),
        ({"num_values": 1}, "`num_values`"),
        ({"max_distance": 1}, "`max_distance`"),
        ({"num_keys": 2.5}, "num_keys=2.5"),
    ],
)
def test_sizes_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        RecallTask(**arguments)


def test_tokens_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="`tokens` must hold integers in"):
        TASK.distances([0, 24])
    with pytest.raises(ValueError, match="`num_tokens`"):
        TASK.stream(0)
