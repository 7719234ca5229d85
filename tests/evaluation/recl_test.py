import math

import numpy as np
import pytest

from txl_keras.evaluation.recl import effective_context_lengths
from txl_keras.evaluation.recl import recl_label

LENGTHS = [100, 200, 300, 400]


def losses_of(*perplexities):
    """A model of the same loss at 5 positions, for each context length."""
    return np.log(np.tile(np.array(perplexities, float)[:, None], 5))


def relative_gains(short, long, top_r):
    """The gains of all models from one context length to the next."""
    losses = np.stack([short, long], axis=1)
    results = effective_context_lengths(losses, [10, 20], top_r)
    return [result["gains"][0] for result in results]


def test_gains_are_those_of_the_paper_word_for_word():
    rng = np.random.default_rng(5)
    short, long = rng.uniform(1, 6, size=(2, 3, 7))  # G = 3, P = 7
    baseline = [min(short[i, t] for i in range(3)) for t in range(7)]
    hard = sorted(range(7), key=lambda t: baseline[t])[-4:]

    def relative_loss(losses):
        return sum(min(baseline[t], losses[t]) for t in hard) / len(hard)

    for i, gain in enumerate(relative_gains(short, long, top_r=4 / 7)):
        before = math.exp(relative_loss(short[i]))
        after = math.exp(relative_loss(long[i]))
        assert gain == pytest.approx((before - after) / before, abs=1e-12)
        assert gain > 0


def test_standard_errors_are_those_of_other_positions():
    rng = np.random.default_rng(5)
    losses = rng.uniform(1, 6, size=(2, 3, 300))  # G = 2, C = 3, P = 300
    results = effective_context_lengths(losses, [10, 20, 30])
    drawn = [
        [
            result["gains"]
            for result in effective_context_lengths(
                losses[:, :, rng.integers(300, size=300)], [10, 20, 30]
            )
        ]
        for _ in range(500)
    ]
    np.testing.assert_allclose(
        [result["standard_errors"] for result in results],
        np.std(drawn, axis=0),
        rtol=0.15,
    )


def test_only_the_hardest_positions_count():
    # 10 positions, the baseline at position 3 is the largest, then 8 and 1.
    short = np.full((2, 10), 2.0)
    short[:, 3], short[:, 8], short[0, 1] = 5.0, 4.0, 2.5
    short[1, 6] = 9.0  # hard for one model, easy for the other
    long = short.copy()
    long[0, 3] -= 0.6
    long[1, 8] -= 0.6

    def gains(top_r):
        return relative_gains(short, long, top_r)

    np.testing.assert_allclose(gains(0.1), [1 - math.exp(-0.6), 0])
    np.testing.assert_allclose(gains(0.2), [1 - math.exp(-0.3)] * 2)
    np.testing.assert_allclose(gains(1.0), [1 - math.exp(-0.06)] * 2)
    # 0.3 * 10 is more than 3 in floating point; less than one is one.
    np.testing.assert_allclose(gains(0.3), [1 - math.exp(-0.2)] * 2)
    np.testing.assert_allclose(gains(0.001), gains(0.1))


def test_the_search_ends_at_the_first_step_that_does_not_pay():
    group = [losses_of(50, 45, 45, 30), losses_of(60, 60, 60, 60)]
    result = effective_context_lengths(group, LENGTHS)[0]
    assert (result["recl"], result["bound"]) == (200, None)
    # All are measured: whoever looks sees that more context would pay.
    assert result["gains"][2] == pytest.approx(1 / 3)
    # A gain of the threshold pays.
    for threshold, expected in ((0.099999, 200), (0.100001, 100)):
        results = effective_context_lengths(group, LENGTHS, threshold=threshold)
        assert results[0]["recl"] == expected


def test_a_gain_that_never_falls_makes_a_lower_bound():
    results = effective_context_lengths(
        [losses_of(50, 45, 40, 35), losses_of(60, 60, 60, 60)], LENGTHS
    )
    assert (results[0]["recl"], results[0]["bound"]) == (400, "lower")
    assert [recl_label(r) for r in results] == [">= 400", "<= 100"]
    assert recl_label({"recl": 1200, "bound": None}) == "1,200"


def test_what_is_no_group_or_no_measurement_is_refused():
    one, other = losses_of(4, 3, 3, 3), losses_of(5, 4, 3, 3)
    unknown = other.copy()
    unknown[2, 1] = np.nan
    for group, lengths, options, message in (
        ([one], LENGTHS, {}, "two models or more.*Received: 1"),
        ([one, other[:, :3]], LENGTHS, {}, "same shape"),
        ([one, other], LENGTHS[:3], {}, "`losses` must have the shape"),
        ([one[:, :0]] * 2, LENGTHS, {}, "finite, for at least one token"),
        ([one, unknown], LENGTHS, {}, "`losses` must be finite"),
        *(
            ([one, one], lengths, {}, "`context_lengths` must be two")
            for lengths in ([100, 200, 300, 500], [4, 3, 2, 1], [5] * 4, [100])
        ),
        ([one, one], [0, 1, 2, 3], {}, "context_lengths=0"),
        ([one, one], None, {}, "`context_lengths` must be a list"),
        ([one, one], LENGTHS, {"top_r": 1.1}, "`top_r` must be"),
        ([one, one], LENGTHS, {"threshold": 0}, "`threshold` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            effective_context_lengths(group, lengths, **options)
