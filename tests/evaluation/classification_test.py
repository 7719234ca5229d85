import keras
import numpy as np
import pytest

from txl_keras.evaluation.classification import classification_scores

NAMES = ["a", "b", "c", "d"]
LABELS = np.array([0, 0, 0, 1, 1, 2])
TAKEN_FOR = np.array([0, 0, 1, 1, 2, 2])  # `d` is neither there nor taken


def logits():
    rng = np.random.default_rng(3)
    return 5 * np.eye(4)[TAKEN_FOR] + rng.normal(size=(6, 4))


def test_scores_are_those_counted_by_hand():
    scores = classification_scores(LABELS, logits(), NAMES)
    assert scores["confusion"] == [
        [2, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]
    assert scores["accuracy"] == pytest.approx(4 / 6)
    expected = {
        "a": (1, 2 / 3, 4 / 5, 3),
        "b": (1 / 2, 1 / 2, 1 / 2, 2),
        "c": (1 / 2, 1, 2 / 3, 1),
        "d": (0, 0, 0, 0),
    }
    for name, numbers in expected.items():
        of_class = scores["classes"][name]
        got = [of_class[k] for k in ("precision", "recall", "f1", "count")]
        assert got == pytest.approx(numbers)
    f1 = [expected[name][2] for name in "abc"]  # d does not occur
    assert scores["f1"] == pytest.approx(np.mean(f1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert scores["loss"] == pytest.approx(float(loss(LABELS, logits())), 1e-5)
