import collections
import random

import pytest

from txl_keras.data import WordTokenizer
from txl_keras.data.tokenizers import building


@pytest.mark.parametrize("min_count,num_kept", [(1, None), (4, None), (2, 13)])
def test_words_are_counted_on_disk_as_in_memory(
    min_count, num_kept, monkeypatch
):
    generator = random.Random(2)
    counters = [
        collections.Counter(
            f"é{int(generator.expovariate(0.05))}\t\u2028" for _ in range(37)
        )
        for _ in range(29)
    ]
    total = building.add_up(counters)
    assert total == sum(counters, collections.Counter())
    monkeypatch.setattr(building, "MAX_STRINGS", 30)
    kept = building.add_up(counters, min_count, num_kept)
    if num_kept is None:
        expected = {w: n for w, n in total.items() if n >= min_count}
        assert list(kept.items()) == list(expected.items())  # in order
    assert len(kept) < len(total) or min_count == 1
    size = num_kept and num_kept - 2
    vocabularies = [
        WordTokenizer.from_counts(counts, min_count, size).vocabulary.symbols
        for counts in (total, kept)
    ]
    assert vocabularies[0] == vocabularies[1]
