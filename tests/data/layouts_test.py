import numpy as np
import pytest

from txl_keras.data import layouts
from txl_keras.data.layouts import Stream
from txl_keras.data.layouts import WholeSegments
from txl_keras.data.layouts import document_lengths
from txl_keras.data.layouts import draw
from txl_keras.data.layouts import permutation

DOCUMENTS = np.array([0, 1, 14, 30, 31, 52])


def all_rows(layout, epoch=0):
    """`Rows` of an epoch with arrays of shape `(steps, B)`."""
    steps = [layout.rows(epoch, step) for step in range(layout.steps_per_epoch)]
    return layouts.Rows(*map(np.stack, zip(*steps, strict=True)))


def inputs_of(layout, epoch=0):
    """All input positions of an epoch, row by row."""
    rows = all_rows(layout, epoch)
    return [
        [
            position
            for start, count in zip(starts, counts, strict=True)
            for position in range(start, start + count)
        ]
        for starts, counts in zip(rows.starts.T, rows.counts.T, strict=True)
    ]


def test_a_draw_is_that_of_splitmix64():
    # The second number of the generator that begins at 0 is the first of the
    # one that begins one step further.
    golden = 0x9E3779B97F4A7C15
    assert [int(draw(0)), int(draw(golden)), int(draw(2 * golden % 2**64))] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    many = draw(3, 4, np.arange(1000))
    assert many.dtype == np.uint64 and len(set(many.tolist())) == 1000
    assert int(draw(3, 4, 7)) == int(many[7])
    assert int(draw(4, 3, 7)) != int(many[7])


def test_a_permutation_is_one_and_differs_by_seed_and_epoch():
    size = (1 << 20) + 5  # more than one piece
    orders = [permutation(size, *key) for key in [(0, 0), (0, 1), (1, 0)]]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(size))
        # The mean distance of a random order is a third of the size.
        distance = np.abs(order - np.arange(size)).mean()
        assert abs(distance / size - 1 / 3) < 0.005
    assert (orders[0] != orders[1]).mean() > 0.99
    assert (orders[0] != orders[2]).mean() > 0.99
    np.testing.assert_array_equal(permutation(1, 0, 0), [0])
    # The same with every version of NumPy.
    assert permutation(5, seed=0, epoch=0).tolist() == [4, 0, 1, 2, 3]


@pytest.mark.parametrize("num_tokens", [31, 32, 41, 100])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_roll_reads_each_row_once_around_in_an_order_of_the_epoch(
    batch_size, num_tokens
):
    layout = Stream(num_tokens, batch_size, 4, seed=5, rolls=True)
    bounds = [r * (num_tokens - 1) // batch_size for r in range(batch_size + 1)]
    # Whatever the offset, of 0 to 3, as many whole segments are left.
    assert layout.steps_per_epoch == ((num_tokens - 1) // batch_size - 3) // 4
    firsts = set()
    for epoch in range(40):
        rows = all_rows(layout, epoch)
        assert (rows.counts == 4).all() and rows.scored.all()
        for row, inputs in enumerate(inputs_of(layout, epoch)):
            assert len(inputs) == len(set(inputs))
            assert bounds[row] <= min(inputs) and max(inputs) < bounds[row + 1]
            assert max(inputs) - min(inputs) + 1 == len(inputs)
            # Reset in the first step, and where it does not go on.
            goes_on = np.diff(rows.starts[:, row]) == 4
            np.testing.assert_array_equal(rows.reset[1:, row], ~goes_on)
            assert rows.reset[0, row] and (~goes_on).sum() <= 1
            firsts.add((row, inputs[0] - bounds[row]))
    # Most of the places to begin at, of 4 offsets by the segments.
    places = batch_size * 4 * layout.steps_per_epoch
    assert len(firsts) > min(places / 2, 30)
    assert len({offset % 4 for _, offset in firsts}) == 4


def test_shuffle_has_all_documents_once_in_an_order_of_the_epoch():
    layout = Stream(60, 2, 5, documents=DOCUMENTS)
    assert layout.steps_per_epoch == Stream(60, 2, 5).steps_per_epoch
    bounds = [*DOCUMENTS.tolist(), 60]
    documents = set(zip(bounds[:-1], bounds[1:], strict=True))
    orders = set()
    for epoch in range(30):
        whole = layout.spans(epoch, 0, 60)
        assert set(whole) == documents
        orders.add(tuple(whole))
        stream = [p for span in whole for p in range(*span)]
        for start in range(0, 59):
            for stop in range(start + 1, min(start + 20, 60) + 1):
                spans = layout.spans(epoch, start, stop)
                found = [p for span in spans for p in range(*span)]
                assert found == stream[start:stop]
    assert len(orders) > 25


@pytest.mark.parametrize("num_tokens", [2, 9, 61, 62])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 16, 40])
@pytest.mark.parametrize("warmup", [0, 1, 3, 99])
def test_whole_segments_are_scored_once_after_those_before_them(
    warmup, batch_size, num_tokens
):
    whole = np.zeros(1, int)
    layout = WholeSegments(whole, num_tokens, batch_size, 4, False, warmup)
    rows = all_rows(layout)
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
    assert rows.counts[rows.scored].sum() == num_tokens - 1
    longest = -(-layout.num_segments // batch_size)
    assert longest <= layout.steps_per_epoch <= longest + warmup
    # One row has nothing to warm up for.
    assert batch_size > 1 or layout.steps_per_epoch == longest


@pytest.mark.parametrize(
    ("options", "least"),
    [({}, 13), ({"rolls": True}, 22), ({"documents": np.array([0, 5])}, 13)],
)
def test_too_few_tokens_are_refused_with_both_numbers(options, least):
    message = f"has {least - 1} tokens, and {least} are needed"
    with pytest.raises(ValueError, match=message):
        Stream(least - 1, 3, 4, **options)
    assert Stream(least, 3, 4, **options).steps_per_epoch >= 1


def test_a_seed_gives_the_same_rows_in_every_release():
    layout = Stream(25, 1, 4, seed=3, rolls=True)
    starts = [int(layout.rows(0, step).starts[0]) for step in range(5)]
    assert starts == [9, 13, 17, 1, 5]


def test_too_few_segments_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="has 12 segments, and 13 are needed"):
        WholeSegments(DOCUMENTS, 60, 13, 5, drop_remainder=True)
    layout = WholeSegments(DOCUMENTS, 60, 13, 5, drop_remainder=False)
    assert layout.steps_per_epoch == 1
    with pytest.raises(ValueError, match="has 0 segments, and 1 are needed"):
        WholeSegments(np.zeros(1, int), 1, 2, 5, drop_remainder=False)


@pytest.mark.parametrize(
    "documents", [[], [1, 5], [0, 5, 5], [0, 7, 6], [0, 9]]
)
def test_documents_must_begin_one_after_the_other(documents):
    with pytest.raises(ValueError, match="`documents` must be the positions"):
        document_lengths(np.array(documents, np.int64), 9)
    assert document_lengths(np.array([0, 8]), 9).tolist() == [8, 1]
