"""Tokens are positions here, so every expected value is a position."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data.segments import Segments


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


def test_evaluation_pads_the_end_of_rows_only():
    # 12 tokens, 11 predictions: rows of 3, 4 and 4.
    segments = positions(12, 3, 2, drop_remainder=False)
    assert len(segments) == 2
    last = segments.batch(1)
    assert last["inputs"].tolist() == [[2, 0], [5, 6], [9, 10]]
    assert last["targets"].tolist() == [[3, 0], [6, 7], [10, 11]]
    assert last["weights"].tolist() == [[1, 0], [1, 1], [1, 1]]


def test_a_batch_has_these_dtypes_whatever_the_dtype_of_the_tokens():
    for dtype in (np.uint8, np.uint16, np.int32, np.int64):
        tokens = np.full(50, 200, dtype)
        batch = Segments(tokens, 3, 4, drop_remainder=True).batch(0)
        assert batch["inputs"].dtype == batch["targets"].dtype == np.int32
        assert batch["weights"].dtype == np.float32
        assert batch["reset"].dtype == bool
        assert batch["inputs"].max() == 200


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_rows_continue_from_step_to_step_until_the_epoch_ends(drop_remainder):
    segments = positions(101, 3, 4, drop_remainder)
    epoch = len(segments)
    for step in range(1, 2 * epoch + 2):
        before, batch = segments.batch(step - 1), segments.batch(step)
        if step % epoch == 0:
            assert batch["reset"].all()
            assert batch["inputs"][:, 0].tolist() == [0, 33, 66]
        else:
            assert not batch["reset"].any()
            follows = batch["inputs"][:, 0] == before["targets"][:, -1]
            assert (follows | (batch["weights"][:, 0] == 0)).all()


def test_a_step_depends_on_nothing_but_its_number():
    segments = positions(101, 3, 4, drop_remainder=True)
    assert len(segments) == 8
    far = segments.batch(8 * 10**12 + 5)
    near = segments.batch(5)
    for key in near:
        np.testing.assert_array_equal(far[key], near[key])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 7, 10])
@pytest.mark.parametrize("num_tokens", [2, 8, 61, 62])
def test_evaluation_scores_every_token_but_the_first_once(
    batch_size, num_tokens
):
    segments = positions(num_tokens, batch_size, 4, drop_remainder=False)
    scored = []
    for step in range(len(segments)):
        batch = segments.batch(step)
        is_scored = batch["weights"] == 1
        assert (is_scored | (batch["weights"] == 0)).all()
        difference = batch["targets"] - batch["inputs"]
        assert (difference[is_scored] == 1).all()
        assert (batch["targets"][~is_scored] == 0).all()
        scored.extend(batch["targets"][is_scored].tolist())
    assert sorted(scored) == list(range(1, num_tokens))


def test_rows_can_be_read_alone():
    segments = positions(101, 5, 3, drop_remainder=True)
    whole = segments.batch(2)
    part = segments.batch(2, first_row=1, num_rows=2)
    rest = segments.batch(2, first_row=3)
    for key in whole:
        np.testing.assert_array_equal(part[key], whole[key][1:3])
        np.testing.assert_array_equal(rest[key], whole[key][3:])


def test_tokens_may_be_a_memory_map_and_are_not_copied(tmp_path):
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", np.uint16, "r")
    segments = Segments(tokens, 3, 4, drop_remainder=True)
    assert np.shares_memory(segments.tokens, tokens)
    assert segments.batch(0)["inputs"][1].tolist() == [16, 17, 18, 19]


def test_arrays_are_the_batches_of_an_epoch_in_order():
    segments = positions(101, 3, 4, drop_remainder=True)
    x, y = segments.arrays()
    assert x.shape == y.shape == (24, 4)
    assert x.dtype == y.dtype == np.int32
    for step in range(len(segments)):
        batch = segments.batch(step)
        np.testing.assert_array_equal(
            x[3 * step : 3 * step + 3], batch["inputs"]
        )
        np.testing.assert_array_equal(
            y[3 * step : 3 * step + 3], batch["targets"]
        )
    with pytest.raises(ValueError, match="drop_remainder=False"):
        positions(101, 3, 4, drop_remainder=False).arrays()


def test_a_dataset_starts_at_its_step_and_has_static_shapes():
    segments = positions(101, 5, 3, drop_remainder=False)
    dataset = segments.dataset(first_step=10**7, first_row=1, num_rows=2)
    spec = dataset.element_spec
    assert spec["inputs"] == tf.TensorSpec((2, 3), tf.int32)
    assert spec["targets"] == tf.TensorSpec((2, 3), tf.int32)
    assert spec["weights"] == tf.TensorSpec((2, 3), tf.float32)
    assert spec["reset"] == tf.TensorSpec((2,), tf.bool)
    for step, batch in zip(range(10**7, 10**7 + 9), dataset, strict=False):
        for key, value in segments.batch(step, 1, 2).items():
            np.testing.assert_array_equal(batch[key], value)


def test_a_dataset_ends_after_num_steps_and_may_pass_the_epoch():
    segments = positions(23, 2, 4, drop_remainder=True)
    dataset = segments.dataset(first_step=1, num_steps=3)
    first_inputs = [int(batch["inputs"][0, 0]) for batch in dataset]
    assert first_inputs == [4, 0, 4]
    assert len(dataset) == 3


def test_distribute_works_on_the_default_strategy():
    segments = positions(23, 2, 4, drop_remainder=True)
    dataset = segments.distribute(tf.distribute.get_strategy(), 1, 2)
    batches = list(dataset)
    assert len(batches) == 2
    np.testing.assert_array_equal(
        batches[0]["inputs"], segments.batch(1)["inputs"]
    )
    np.testing.assert_array_equal(batches[1]["reset"], [True, True])


# The number of devices is fixed for a process, so replicas need another one.
TWO_REPLICAS = """
import numpy as np
import tensorflow as tf
from txl_keras.data.segments import Segments

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
segments = Segments(np.arange(101), 6, 3, drop_remainder=False)


def check(dataset, first_step, num_steps):
    steps = 0
    for step, batch in zip(
        range(first_step, first_step + num_steps), dataset, strict=False
    ):
        expected = segments.batch(step)
        for key in expected:
            per_replica = strategy.experimental_local_results(batch[key])
            assert len(per_replica) == 2
            for replica, value in enumerate(per_replica):
                assert value.shape[0] == 3, value.shape
                rows = expected[key][3 * replica : 3 * replica + 3]
                np.testing.assert_array_equal(value, rows)
        steps += 1
    assert steps == num_steps, steps


check(segments.distribute(strategy, first_step=10**7), 10**7, 9)
finite = segments.distribute(strategy, first_step=4, num_steps=5)
check(finite, 4, 5)
assert len(list(finite)) == 5
assert finite.element_spec["inputs"]._value_specs[0].shape == (3, 3)

try:
    Segments(np.arange(101), 5, 3, True).distribute(strategy)
except ValueError as error:
    assert "batch_size=5, 2 replicas" in str(error), error
else:
    raise AssertionError("5 rows on 2 replicas were accepted")
print("all good")
"""


def test_each_of_two_replicas_always_gets_its_own_rows():
    result = subprocess.run(
        [sys.executable, "-c", TWO_REPLICAS], capture_output=True, text=True
    )
    assert "all good" in result.stdout, result.stderr[-3000:]


def test_each_of_two_workers_always_gets_its_own_rows():
    segments = positions(101, 8, 3, drop_remainder=True)

    class TwoWorkersOfTwoReplicas:
        num_replicas_in_sync = 4

        def distribute_datasets_from_function(self, function):
            return [
                function(tf.distribute.InputContext(2, worker, 4))
                for worker in range(2)
            ]

    workers = segments.distribute(TwoWorkersOfTwoReplicas(), 6, 4)
    for worker, dataset in enumerate(workers):
        elements = list(dataset)
        assert len(elements) == 8
        for i, batch in enumerate(elements):
            first_row = 4 * worker + 2 * (i % 2)
            expected = segments.batch(6 + i // 2, first_row, 2)
            np.testing.assert_array_equal(batch["inputs"], expected["inputs"])
            np.testing.assert_array_equal(batch["reset"], expected["reset"])


def test_a_text_below_one_step_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="has 12 tokens, and 13 are needed"):
        positions(12, 3, 4, drop_remainder=True)
    assert len(positions(13, 3, 4, drop_remainder=True)) == 1
    with pytest.raises(ValueError, match="--batch_size or --segment_length"):
        positions(1, 3, 4, drop_remainder=False)


def test_wrong_tokens_are_refused():
    with pytest.raises(ValueError, match=r"`tokens`.*shape \(4, 5\)"):
        Segments(np.zeros((4, 5), int), 2, 3, True)
    with pytest.raises(ValueError, match="`tokens`.*float64"):
        Segments(np.zeros(40), 2, 3, True)
    with pytest.raises(ValueError, match="`tokens`"):
        Segments("some text", 2, 3, True)


@pytest.mark.parametrize("size", [0, -2, 1.5, True, None])
def test_wrong_sizes_are_refused(size):
    tokens = np.arange(50)
    with pytest.raises(ValueError, match=f"`batch_size`.*batch_size={size}"):
        Segments(tokens, size, 3, True)
    with pytest.raises(ValueError, match="`segment_length`"):
        Segments(tokens, 2, size, True)


def test_wrong_steps_and_rows_are_refused():
    segments = positions(101, 5, 3, drop_remainder=True)
    with pytest.raises(ValueError, match="`step`.*step=-1"):
        segments.batch(-1)
    with pytest.raises(ValueError, match="first_row=4, num_rows=2"):
        segments.batch(0, first_row=4, num_rows=2)
    with pytest.raises(ValueError, match="`num_rows`.*num_rows=0"):
        segments.dataset(first_row=5)
    with pytest.raises(ValueError, match="`first_step`"):
        segments.dataset(first_step=-3)
    with pytest.raises(ValueError, match="`num_steps`"):
        segments.dataset(num_steps=0)
