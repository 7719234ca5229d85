"""Scores by distance find their keys."""

import numpy as np
import pytest
from attention_loops import random

from txl_keras.layers import relative_shift


@pytest.mark.parametrize("length,num_keys", [(1, 1), (1, 6), (4, 4), (3, 7)])
def test_relative_shift_equals_indexing_by_distance(length, num_keys):
    scores = random(2, 5, length, num_keys)
    shifted = np.array(relative_shift(scores))
    for i in range(length):
        for j in range(num_keys - length + i + 1):
            distance = num_keys - length + i - j
            np.testing.assert_array_equal(
                shifted[:, :, i, j], scores[:, :, i, num_keys - 1 - distance]
            )
