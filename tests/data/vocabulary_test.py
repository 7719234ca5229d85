import itertools
import math

import numpy as np
import pytest

from txl_keras.data import choose_cutoffs
from txl_keras.data import vocabulary


def logits_a_token(cutoffs, counts):
    """What Grave et al. count: the head, and tails as often as they come."""
    ends = [*cutoffs, len(counts)]
    tails = sum(
        counts[begin:end].sum() / counts.sum() * (end - begin)
        for begin, end in itertools.pairwise(ends)
    )
    return cutoffs[0] + len(cutoffs) + tails


@pytest.mark.parametrize("size", [200, 40])
def test_no_other_cutoffs_need_fewer_logits(size, monkeypatch):
    monkeypatch.setattr(vocabulary, "LARGE_VOCABULARY", 2)
    generator = np.random.default_rng(size)
    counts = np.sort(generator.pareto(1.0, size))[::-1]
    chosen = choose_cutoffs(counts)
    places = np.geomspace(1, size, 1 + math.ceil(math.log(size, 1.1)))
    places = sorted(set(places.astype(int).tolist()))[:-1]
    best = min(
        logits_a_token(cutoffs, counts)
        for cutoffs in itertools.combinations(places, 3)
    )
    assert logits_a_token(chosen, counts) == pytest.approx(best)


def test_a_small_vocabulary_is_not_cut():
    assert choose_cutoffs(np.ones(9_999)) == []
    assert len(choose_cutoffs(np.arange(10_000)[::-1])) == 3
