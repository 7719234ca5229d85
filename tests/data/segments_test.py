"""Tokens are positions here, so every expected value is a position.

What replicas read is tested in conformance/distribution_test.py, and wrong
values of one argument alone in conformance/settings_test.py.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data.segments import Segments

DOCUMENTS = np.array([0, 1, 14, 30, 31, 52])
RESET = {"documents": DOCUMENTS, "reset_documents": True}


def positions(num_tokens, batch_size, segment_length, drop_remainder):
    return Segments(
        np.arange(num_tokens), batch_size, segment_length, drop_remainder
    )


def test_training_batches_are_these():
    # 23 tokens, 22 predictions: row 0 from 0, row 1 from 11.
    segments = positions(23, 2, 4, drop_remainder=True)
    assert len(segments) == segments.steps_per_epoch == 2
    first, second = segments.batch(0), segments.batch(1)
    assert first["inputs"].tolist() == [[0, 1, 2, 3], [11, 12, 13, 14]]
    assert first["targets"].tolist() == [[1, 2, 3, 4], [12, 13, 14, 15]]
    assert first["reset"].tolist() == [True, True]
    assert second["inputs"].tolist() == [[4, 5, 6, 7], [15, 16, 17, 18]]
    assert second["reset"].tolist() == [False, False]
    np.testing.assert_array_equal(second["weights"], np.ones((2, 4)))
    # Epochs follow each other; a step depends on nothing but its number.
    np.testing.assert_equal(segments.batch(2 * 10**12), first)
    part = segments.batch(1, first_row=1)
    assert part.pop("num_targets") == 8  # of all rows
    for name, values in part.items():
        np.testing.assert_array_equal(values, second[name][1:])


def test_evaluation_pads_the_end_of_rows_only():
    # 12 tokens, 11 predictions, 4 segments: rows of 1, 1 and 2.
    segments = positions(12, 3, 3, drop_remainder=False)
    assert len(segments) == 2
    first, last = segments.batch(0), segments.batch(1)
    assert first["inputs"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert last["inputs"].tolist() == [[0, 0, 0], [0, 0, 0], [9, 10, 0]]
    assert last["targets"].tolist() == [[0, 0, 0], [0, 0, 0], [10, 11, 0]]
    assert last["weights"].tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert (first["num_targets"], last["num_targets"]) == (9, 2)


def test_arrays_are_the_batches_of_an_epoch_in_order():
    segments = positions(101, 3, 4, drop_remainder=True)
    x, y = segments.arrays()
    assert x.shape == y.shape == (24, 4)
    assert x.dtype == y.dtype == np.int32
    for step, read in enumerate(x.reshape(8, 3, 4)):
        batch = segments.batch(step)
        np.testing.assert_array_equal(read, batch["inputs"])
        np.testing.assert_array_equal(
            y[3 * step : 3 * step + 3], batch["targets"]
        )
    for arguments in ({"drop_remainder": False}, {"order": "roll"}, RESET):
        arguments = {"drop_remainder": True, **arguments}
        other = Segments(np.arange(101), 3, 4, **arguments)
        with pytest.raises(ValueError, match="`arrays.*order="):
            other.arrays()


def test_a_dataset_has_the_steps_asked_for_and_static_shapes():
    segments = positions(101, 5, 3, drop_remainder=False)  # 7 steps per epoch
    dataset = segments.dataset(10**7, 9, first_row=1, num_rows=2)
    assert len(dataset) == 9
    spec = dataset.element_spec
    assert spec["inputs"] == tf.TensorSpec((2, 3), tf.int32)
    assert spec["targets"] == tf.TensorSpec((2, 3), tf.int32)
    assert spec["weights"] == tf.TensorSpec((2, 3), tf.float32)
    assert spec["reset"] == tf.TensorSpec((2,), tf.bool)
    assert spec["num_targets"] == tf.TensorSpec((), tf.float32)
    for step, batch in enumerate(dataset.as_numpy_iterator(), start=10**7):
        np.testing.assert_equal(batch, segments.batch(step, 1, 2))


class CountedTokens:
    """As many tokens as no machine holds, in slices."""

    dtype = np.dtype(np.uint32)

    def __init__(self, size):
        self.size = size
        self.num_read = 0

    def __len__(self):
        return self.size

    def __getitem__(self, where):
        positions = np.arange(*where.indices(self.size)) % 2**31
        self.num_read += len(positions)
        return positions.astype(self.dtype)


@pytest.mark.parametrize(
    "arguments",
    [
        {"drop_remainder": False, "warmup_segments": 7},
        {"drop_remainder": True, "order": "roll"},
        {"drop_remainder": True, "order": "shuffle"},
        {"drop_remainder": False, "reset_documents": True},
    ],
)
def test_only_what_a_step_needs_is_read(arguments):
    tokens = CountedTokens(10**12)
    documents = np.arange(1000) * 10**9
    segments = Segments(tokens, 4, 50, documents=documents, **arguments)
    step = 10_000_000
    batch = segments.batch(step, first_row=1, num_rows=2)
    width = batch["inputs"].shape[1]
    assert 0 < tokens.num_read <= 2 * (width + 1)
    is_read = batch["weights"] == 1
    assert is_read.any()
    difference = batch["targets"] - batch["inputs"]
    assert (difference[is_read] == 1).mean() > 0.98

    dataset = segments.dataset(step, 1, first_row=1, num_rows=2)
    (first,) = dataset.as_numpy_iterator()
    np.testing.assert_equal(first, batch)


@pytest.mark.parametrize(
    ("order", "drop_remainder"),
    [("sequential", True), ("sequential", False), ("shuffle", True)],
)
def test_no_batch_mixes_documents(order, drop_remainder):
    document_of = np.searchsorted(DOCUMENTS, np.arange(60), "right")
    segments = Segments(
        np.arange(60), 2, 5, drop_remainder, order=order, **RESET
    )
    assert len(segments) == 6  # of 12 segments
    for epoch in range(2):
        scored = []
        last = np.zeros(2, int)  # document that each row reads
        for step in range(6):
            batch = segments.batch(6 * epoch + step)
            is_read = batch["weights"] == 1
            assert batch["num_targets"] == is_read.sum()
            assert (batch["inputs"][~is_read] == 0).all()
            scored.extend(batch["targets"][is_read].tolist())
            for row in range(2):
                read = batch["inputs"][row][is_read[row]]
                (document,) = set(document_of[read])
                targets = batch["targets"][row][is_read[row]]
                assert set(document_of[targets]) == {document}
                assert batch["reset"][row] or document == last[row]
                last[row] = document
        assert sorted(scored) == sorted(set(range(60)) - set(DOCUMENTS))


def test_half_loss_scores_the_later_half_of_what_is_read():
    plain = Segments(np.arange(60), 2, 5, True)
    half = Segments(np.arange(60), 2, 5, True, half_loss=True)
    for step in range(len(plain)):
        expected = plain.batch(step)
        batch = half.batch(step)
        assert batch["weights"].tolist() == [[0, 0, 1, 1, 1]] * 2
        assert batch["num_targets"] == 6
        for name in ("inputs", "targets", "reset"):
            np.testing.assert_array_equal(batch[name], expected[name])
    # Where documents end, the half is of what there is of each row.
    segments = Segments(np.arange(60), 2, 7, True, half_loss=True, **RESET)
    lengths = set()
    for step in range(len(segments)):
        batch = segments.batch(step)
        assert batch["num_targets"] == batch["weights"].sum()
        for read, weights in zip(
            batch["targets"] > 0, batch["weights"], strict=True
        ):
            length = read.sum()
            lengths.add(length)
            is_scored = np.arange(7) >= length // 2
            assert weights.tolist() == (is_scored & read).tolist()
    assert len(lengths) > 2


def test_cold_starts_reset_a_share_of_segments():
    make = functools.partial(Segments, np.arange(8000), 8, 4, True, seed=3)
    warm, cold = make(), make(cold_starts=0.2)
    steps = range(2 * len(cold))
    resets = np.array([cold.batch(step)["reset"] for step in steps])
    assert resets[[0, len(cold)]].all()
    assert 0.18 < resets[1:].mean() < 0.22
    first, second = resets[: len(cold)], resets[len(cold) :]
    assert (first != second).any()  # other ones in each epoch
    assert (resets[:, 1:] != resets[:, :-1]).any()
    for step in (0, 7, 300):
        batch, part = cold.batch(step), cold.batch(step, 2, 3)
        np.testing.assert_array_equal(part["reset"], batch["reset"][2:5])
        expected = warm.batch(step) | {"reset": batch["reset"]}
        np.testing.assert_equal(batch, expected)
    assert make(cold_starts=1).batch(5)["reset"].all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"warmup_segments": 2},
        {"reset_documents": True},
        {"reset_documents": True, "warmup_segments": 1},
    ],
)
def test_the_positions_of_targets_are_where_they_are_scored(arguments):
    # Tokens are positions.
    segments = Segments(
        np.arange(60), 3, 5, False, documents=DOCUMENTS, **arguments
    )
    for step in range(len(segments)):
        batch = segments.batch(step)
        positions = segments.target_positions(step)
        assert positions.dtype == np.int64
        expected = np.where(batch["weights"] == 1, batch["targets"], -1)
        np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(  # the next epoch
        segments.target_positions(len(segments) + 1),
        segments.target_positions(1),
    )
    segments = Segments(np.arange(60), 3, 5, drop_remainder=True)
    with pytest.raises(ValueError, match="`target_posi.*drop_remainder=True"):
        segments.target_positions(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "roll", "drop_remainder": False}, "`order`.* training"),
        ({"warmup_segments": 2}, "`warmup_segments` .*drop_remainder=True"),
        ({"half_loss": True, "drop_remainder": False}, "`half_loss` .*train"),
        ({"cold_starts": 0.1, "drop_remainder": False}, "`cold_starts` are"),
        ({"cold_starts": 1.5}, "`cold_starts` must be .* at most 1"),
        ({"order": "shuffle"}, "need `documents`.*documents=False"),
        ({"reset_documents": True}, "need `documents`.*documents=False"),
        ({"order": "roll", **RESET}, "`reset_docu.* excludes.*order='roll'"),
        ({**RESET, "documents": [0, 5.5]}, "must be integers.*float64"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    arguments = {"drop_remainder": True, **arguments}
    with pytest.raises(ValueError, match=message):
        Segments(np.arange(60), 2, 5, **arguments)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("batch", {"step": -1}, "`step`.*step=-1"),
        ("batch", {"step": 0, "first_row": 4, "num_rows": 2}, "num_rows=2"),
        ("dataset", {"first_row": 5}, "`num_rows`.*num_rows=0"),
        ("dataset", {"first_step": -3}, "`first_step`"),
        ("dataset", {"num_steps": 0}, "`num_steps`"),
        ("target_positions", {"step": -1}, "step=-1"),
    ],
)
def test_wrong_steps_and_rows_are_refused(method, arguments, message):
    segments = positions(101, 5, 3, drop_remainder=False)
    with pytest.raises(ValueError, match=message):
        getattr(segments, method)(**arguments)
