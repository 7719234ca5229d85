import numpy as np
import pytest

from txl_keras.data.layouts import Layout
from txl_keras.data.layouts import document_lengths
from txl_keras.data.layouts import permutation
from txl_keras.data.segments import Segments

DOCUMENTS = np.array([0, 1, 14, 30, 31, 52])


def test_a_permutation_is_one_and_differs_by_seed_and_epoch():
    order = permutation(100_003, seed=0, epoch=0)
    np.testing.assert_array_equal(np.sort(order), np.arange(100_003))
    # The mean distance of a random order is a third of the size.
    distance = np.abs(order - np.arange(100_003)).mean()
    assert abs(distance / 100_003 - 1 / 3) < 0.005
    np.testing.assert_array_equal(permutation(1, 0, 0), [0])
    # The same with every version of NumPy.
    for key, first in (((0, 0), 248), ((0, 1), 672), ((1, 0), 365)):
        assert permutation(1000, *key)[0] == first


@pytest.mark.parametrize("batch_size, num_tokens", [(1, 32), (3, 41), (3, 100)])
def test_roll_reads_each_row_once_around_in_an_order_of_the_epoch(
    batch_size, num_tokens
):
    segments = Segments(
        np.arange(num_tokens), batch_size, 4, True, order="roll", seed=5
    )
    bounds = [r * (num_tokens - 1) // batch_size for r in range(batch_size + 1)]
    # Whatever the offset, of 0 to 3, as many whole segments are left.
    steps = len(segments)
    assert steps == ((num_tokens - 1) // batch_size - 3) // 4
    firsts = set()
    for epoch in range(40):
        batches = [segments.batch(epoch * steps + i) for i in range(steps)]
        assert all(batch["weights"].all() for batch in batches)
        for row in range(batch_size):
            inputs = np.array([batch["inputs"][row] for batch in batches])
            reset = np.array([batch["reset"][row] for batch in batches])
            first, last = inputs.min(), inputs.max()
            assert len(np.unique(inputs)) == inputs.size == last - first + 1
            assert bounds[row] <= first and last < bounds[row + 1]
            # Reset in the first step, and where it does not go on.
            goes_on = np.diff(inputs[:, 0]) == 4
            np.testing.assert_array_equal(reset[1:], ~goes_on)
            assert reset[0] and (~goes_on).sum() <= 1
            firsts.add((row, inputs[0, 0] - bounds[row]))
    # Most of the places to begin at, of 4 offsets by the segments.
    assert len(firsts) > min(batch_size * 4 * steps / 2, 30)
    assert len({offset % 4 for _, offset in firsts}) == 4


def test_shuffle_has_all_documents_once_in_an_order_of_the_epoch():
    def batch(batch_size, length, step):
        return Segments(
            np.arange(60), batch_size, length, True, order="shuffle",
            documents=DOCUMENTS,
        ).batch(step)  # fmt: skip

    orders = set()
    for epoch in range(30):
        whole = batch(1, 59, epoch)
        stream = [0, *whole["targets"][0]]
        stream[0] = whole["inputs"][0, 0]
        begins = np.flatnonzero(np.isin(stream, DOCUMENTS))
        for document in np.split(stream, begins[1:]):
            following = [*DOCUMENTS[document[0] < DOCUMENTS], 60][0]
            assert document.tolist() == [*range(document[0], following)]
        assert sorted(stream) == list(range(60))
        orders.add(tuple(stream))
        for step in range(5):  # rows of 29 or 30 predictions
            found = batch(2, 5, 5 * epoch + step)
            for row, start in enumerate((0, 29)):
                part = stream[start + 5 * step :][:6]
                assert found["inputs"][row].tolist() == part[:-1]
                assert found["targets"][row].tolist() == part[1:]
    assert len(orders) > 25


@pytest.mark.parametrize("num_tokens", [2, 9, 61, 62])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 16, 40])
@pytest.mark.parametrize("warmup", [0, 1, 3, 99])
def test_whole_segments_are_scored_once_after_those_before_them(
    warmup, batch_size, num_tokens
):
    text = np.zeros(1, int), np.array([num_tokens - 1])
    layout = Layout(*text, batch_size, 4, False, warmup)
    steps = range(layout.steps_per_epoch)
    each = [layout.rows(0, step) for step in steps]
    rows = [np.stack(arrays) for arrays in zip(*each, strict=True)]
    scored = []
    for row in range(batch_size):
        starts, counts, is_scored, reset = (array[:, row] for array in rows)
        read = np.flatnonzero(counts)
        own = starts[read][is_scored[read]].tolist()
        scored.extend(own)
        if not own:
            continue
        # One run of segments, reset where it begins and nowhere else.
        assert (np.diff(starts[read]) == 4).all()
        assert (np.diff(read) == 1).all()
        np.testing.assert_array_equal(np.flatnonzero(reset), read[:1])
        # As many before its own as were asked for, or there are.
        assert len(read) - len(own) == min(warmup, own[0] // 4)
    assert scored == list(range(0, num_tokens - 1, 4))
    assert rows[1][rows[2]].sum() == num_tokens - 1
    longest = -(-layout.num_segments // batch_size)
    assert longest <= layout.steps_per_epoch <= longest + warmup
    # One row has nothing to warm up for.
    assert batch_size > 1 or layout.steps_per_epoch == longest


@pytest.mark.parametrize(
    ("order", "least"), [("sequential", 13), ("roll", 22), ("shuffle", 13)]
)
def test_too_few_tokens_are_refused_with_both_numbers(order, least):
    message = f"has {least - 1} tokens, and {least} are needed"
    options = {"order": order, "documents": np.array([0, 5])}
    with pytest.raises(ValueError, match=message):
        Segments(np.zeros(least - 1, int), 3, 4, True, **options)
    assert len(Segments(np.zeros(least, int), 3, 4, True, **options)) >= 1


def test_a_seed_gives_the_same_rows_in_every_release():
    segments = Segments(np.arange(25), 1, 4, True, order="roll", seed=3)
    starts = [segments.batch(step)["inputs"][0, 0] for step in range(5)]
    assert starts == [9, 13, 17, 1, 5]


def test_too_few_segments_are_refused_with_both_numbers():
    sizes = np.array([0, 12, 15, 0, 20, 7])  # 12 segments of 5
    with pytest.raises(ValueError, match="has 12 segments, and 13 are needed"):
        Layout(DOCUMENTS, sizes, 13, 5, drop_remainder=True)
    layout = Layout(DOCUMENTS, sizes, 13, 5, drop_remainder=False)
    assert layout.steps_per_epoch == 1
    with pytest.raises(ValueError, match="has 0 segments, and 1 are needed"):
        Segments(np.zeros(1, int), 2, 5, drop_remainder=False)


@pytest.mark.parametrize(
    "documents", [[], [1, 5], [0, 5, 5], [0, 7, 6], [0, 9]]
)
def test_documents_must_begin_one_after_the_other(documents):
    with pytest.raises(ValueError, match="`documents` must be the positions"):
        document_lengths(np.array(documents, np.int64), 9)
    assert document_lengths(np.array([0, 8]), 9).tolist() == [8, 1]
