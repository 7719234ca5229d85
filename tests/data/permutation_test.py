"""What is drawn for permutation language modelling, and who sees what."""

import itertools

import numpy as np
import pytest

from txl_keras.data import PermutedSegments
from txl_keras.data import Segments

B, T = 3, 26


def permuted(
    num_tokens=400,
    segment_length=T,
    drop_remainder=True,
    half_loss=False,
    **kwargs,
):
    """Of tokens that are their own positions."""
    segments = Segments(
        np.arange(num_tokens),
        B,
        segment_length,
        drop_remainder,
        half_loss=half_loss,
    )
    return PermutedSegments(segments, **{"context_factor": 4, **kwargs})


def ranks(batch, row):
    """The place of each target in the order: how many targets it sees."""
    targets = batch["target_mapping"][row].argmax(axis=-1)
    return batch["permutation_mask"][row][np.ix_(targets, targets)].sum(-1)


def test_a_batch_has_these_targets():
    batch = permuted(max_span=3).batch(2)
    assert batch["inputs"][:, 0].tolist() == [52, 185, 318]
    places = batch["target_mapping"].argmax(axis=-1)
    assert places.shape == (B, T // 4)
    np.testing.assert_array_equal(batch["target_mapping"].sum(-1), 1)
    assert (np.diff(places) > 0).all()
    np.testing.assert_array_equal(
        batch["targets"], places + batch["inputs"][:, :1]
    )
    assert batch["num_targets"] == batch["weights"].sum() == B * (T // 4)
    assert not batch["reset"].any()
    assert permuted().batch(0)["reset"].all()


@pytest.mark.parametrize("context_factor", [1, 3])
def test_tokens_that_are_no_targets_are_seen_by_all_and_targets_by_later_ones(
    context_factor,
):
    batch = permuted(context_factor=context_factor).batch(1)
    num_targets = T // context_factor
    for row in range(B):
        sees = batch["permutation_mask"][row]
        is_target = batch["target_mapping"][row].any(axis=0)
        assert is_target.sum() == num_targets
        assert sees[:, ~is_target].all()
        assert not sees[np.ix_(~is_target, is_target)].any()
        # A strict order: each sees those before it, the first sees none.
        among = sees[np.ix_(is_target, is_target)]
        rank = among.sum(axis=1)
        np.testing.assert_array_equal(np.sort(rank), np.arange(num_targets))
        np.testing.assert_array_equal(among, rank[:, None] > rank)


def test_all_orders_of_targets_are_as_likely():
    segments = permuted(segment_length=3, context_factor=1)
    orders = [
        tuple(ranks(segments.batch(step), row))
        for step in range(400)
        for row in range(B)
    ]
    for order in itertools.permutations(range(3)):
        assert 160 < orders.count(order) < 240  # 1200 / 6, deviation 13


def run_lengths(is_target):
    edges = np.flatnonzero(np.diff([0, *is_target.astype(int), 0]))
    return np.diff(edges)[::2]


def test_spans_have_the_lengths_of_the_original_code():
    # A large K, so that hardly two of them meet.
    segments = permuted(9001, 1000, context_factor=20, max_span=4)
    is_target = [
        row
        for step in range(20)
        for row in segments.batch(step)["target_mapping"].any(axis=1)
    ]
    lengths = np.concatenate([run_lengths(row) for row in is_target])
    assert lengths.sum() == 20 * B * 50
    shares = np.bincount(lengths)[1:5] / len(lengths)
    expected = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)
    np.testing.assert_allclose(shares, expected, atol=0.03)
    assert (lengths > 4).mean() < 0.03


def test_what_is_drawn_is_a_function_of_seed_step_and_row():
    segments = permuted()
    batch = segments.batch(5)
    np.testing.assert_equal(permuted().batch(5), batch)
    some = segments.batch(5, first_row=1, num_rows=2)
    for name, value in batch.items():
        rows = value if name == "num_targets" else value[1:]
        np.testing.assert_array_equal(some[name], rows)
    # The same tokens, an epoch later, and with another seed.
    later = segments.batch(5 + len(segments))
    other = permuted(seed=1).batch(5)
    for others in (later, other):
        np.testing.assert_array_equal(others["inputs"], batch["inputs"])
        for name in ("targets", "permutation_mask"):
            assert (others[name] != batch[name]).any()


def test_with_the_next_segment_none_of_it_is_seen_from_the_first():
    segments = permuted(segment_length=13, with_next=True)
    assert (segments.segment_length, segments.reuse_length) == (T, 13)
    assert len(segments) == 133 // 13 - 1
    first, second = segments.batch(0), segments.batch(1)
    np.testing.assert_array_equal(
        first["inputs"][:, 13:], second["inputs"][:, :13]
    )
    assert first["reset"].all()
    assert not second["reset"].any()
    sees = second["permutation_mask"]
    assert not sees[:, :13, 13:].any()
    assert sees[:, 13:, :13].all()
    is_target = second["target_mapping"].any(axis=1)
    assert (is_target[:, :13].sum(-1) == 3).all()
    assert sorted(ranks(second, 0)) == [0, 1, 2, 3, 4, 5]
    # An epoch later row r begins where it began.
    again = segments.batch(len(segments))
    np.testing.assert_array_equal(again["inputs"], first["inputs"])
    assert again["reset"].all()


def test_padding_is_neither_seen_nor_predicted():
    # 36 inputs in segments of 10: rows of 1, 1 and 2, the last one of 6.
    segments = permuted(37, 10, drop_remainder=False, context_factor=2)
    assert len(segments) == 2
    assert segments.batch(0)["num_targets"] == B * 5
    batch = segments.batch(1)
    assert batch["inputs"][2].tolist() == [*range(30, 36), 0, 0, 0, 0]
    assert not batch["permutation_mask"][:2].any()
    assert not batch["permutation_mask"][2, :, 6:].any()
    np.testing.assert_array_equal(batch["weights"][:2], 0)
    mapping, weights = batch["target_mapping"], batch["weights"]
    assert 0 < weights[2].sum() == batch["num_targets"] < 5
    np.testing.assert_array_equal(mapping.sum(-1), weights)
    np.testing.assert_array_equal(
        batch["targets"], np.einsum("bpt,bt->bp", mapping, batch["inputs"])
    )
    # What is real and no target is seen by all.
    is_context = (np.arange(10) < 6) & ~mapping[2].any(axis=0)
    assert batch["permutation_mask"][2][:, is_context].all()


def test_some_ids_are_never_predicted_and_seen_by_all():
    tokens = np.arange(400) % 7
    segments = Segments(tokens, B, T, drop_remainder=True)
    batch = PermutedSegments(
        segments, context_factor=2, not_predicted=[2, 5]
    ).batch(3)
    is_target = batch["weights"] == 1
    assert not np.isin(batch["targets"][is_target], [2, 5]).any()
    assert 0 < is_target.sum() == batch["num_targets"] < is_target.size
    special = np.isin(batch["inputs"], [2, 5])
    for row in range(B):
        assert batch["permutation_mask"][row][:, special[row]].all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_factor": 0}, "`context_factor` must.*context_factor=0"),
        (
            {"context_factor": T + 1},
            f"have a target.*={T}.*context_factor={T + 1}",
        ),
        ({"max_span": 0}, "`max_span` must be.*max_span=0"),
        ({"not_predicted": [3, -1]}, "`not_predicted` must.*not_predicted=-1"),
        ({"seed": -1}, "`seed` must.*seed=-1"),
        ({"with_next": True, "segment_length": 133}, "`with_next`.*per_row=1"),
        ({"half_loss": True}, "`segments` must all.*half_loss=True"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        permuted(**options)
