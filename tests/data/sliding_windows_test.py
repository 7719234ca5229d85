import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import SlidingWindows

TOKENS = np.arange(100, 123)  # the token at position p is 100 + p
DOCUMENTS = np.array([0, 1, 3, 12])


def predictions(windows):
    """Of each target by its position: the inputs it is predicted from."""
    found = {}
    for step in range(len(windows)):
        batch = windows.batch(step)
        assert batch["num_targets"] == batch["weights"].sum()
        for row in range(windows.batch_size):
            for k in np.flatnonzero(batch["weights"][row]):
                place = batch["target_places"][row, k]
                position = batch["targets"][row, k] - 100
                assert windows.target_positions(step)[row, k] == position
                assert position not in found
                found[position] = batch["inputs"][row, : place + 1].tolist()
    return found


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(("length", "stride"), [(5, 1), (5, 3), (4, 4), (1, 1)])
def test_every_token_is_predicted_once_from_those_before_it(
    batch_size, length, stride
):
    found = predictions(SlidingWindows(TOKENS, batch_size, length, stride))
    assert sorted(found) == list(range(1, 23))
    for position, inputs in found.items():
        assert inputs == TOKENS[position - len(inputs) : position].tolist()
        # Which of the targets of its window it is, the last one of which has
        # a whole window before it, or all of the text.
        after = min((position - 1) // stride * stride + stride, 22) - position
        assert len(inputs) == min(position, length - after)


def test_a_window_never_begins_before_its_document():
    windows = SlidingWindows(
        TOKENS, 2, 5, 2, documents=DOCUMENTS, reset_documents=True
    )
    found = predictions(windows)
    assert sorted(found) == sorted(set(range(23)) - set(DOCUMENTS.tolist()))
    for position, inputs in found.items():
        begin = DOCUMENTS[position > DOCUMENTS].max()
        assert inputs == TOKENS[position - len(inputs) : position].tolist()
        assert len(inputs) >= min(position - begin, 4)
        assert inputs[0] >= 100 + begin


def test_a_text_shorter_than_a_window_is_padded():
    windows = SlidingWindows(TOKENS[:4], 1, 6, 5)
    assert len(windows) == 1
    batch = windows.batch(0)
    assert batch["inputs"].tolist() == [[100, 101, 102, 0, 0, 0]]
    assert batch["targets"].tolist() == [[101, 102, 103, 0, 0]]
    assert batch["weights"].tolist() == [[1, 1, 1, 0, 0]]


def test_rows_can_be_read_alone_and_datasets_have_static_shapes():
    windows = SlidingWindows(TOKENS, 3, 5, 2)
    dataset = windows.dataset(num_steps=len(windows))
    for step, element in enumerate(dataset.as_numpy_iterator()):
        np.testing.assert_equal(element, windows.batch(step))
    part = windows.batch(1, first_row=1, num_rows=2)
    assert part["inputs"].tolist() == windows.batch(1)["inputs"][1:].tolist()
    spec = windows.dataset(first_row=1, num_rows=2).element_spec
    assert spec["inputs"] == tf.TensorSpec((2, 5), tf.int32)
    assert spec["target_places"] == tf.TensorSpec((2, 2), tf.int32)
