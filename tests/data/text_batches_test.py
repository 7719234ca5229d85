import itertools

import numpy as np
import pytest

from txl_keras.data import TextBatches
from txl_keras.data import pad_texts

T, B = 4, 3
LENGTHS = [3, 17, 4, 1, 5, 8, 2, 9, 16, 4, 30, 1, 6, 7]


def texts():
    """Each is its own number, again and again."""
    return [np.full(n, i, "uint8") for i, n in enumerate(LENGTHS)]


def batches(seed=None, **options):
    labels = np.arange(len(LENGTHS)) * 10
    options = {"max_batch_tokens": 40, **options}
    return TextBatches(texts(), labels, B, T, seed=seed, **options)


def epoch(of, number=0):
    steps = of.steps_per_epoch
    return [of.batch(number * steps + step) for step in range(steps)]


@pytest.mark.parametrize("seed", [None, 5])
def test_every_text_comes_once_an_epoch_with_its_label(seed):
    for number in (0, 3):
        seen = []
        for inputs, labels in epoch(batches(seed), number):
            ids, lengths = inputs["token_ids"], inputs["lengths"]
            assert (ids.dtype, lengths.dtype, labels.dtype) == ("int32",) * 3
            for row, length, label in zip(ids, lengths, labels, strict=True):
                text = label // 10
                assert length == LENGTHS[text]
                assert (row[:length] == text).all() and not row[length:].any()
                seen.append(text)
        assert sorted(seen) == list(range(len(LENGTHS)))


def test_batches_are_of_about_one_length_and_bounded():
    for inputs, _ in epoch(batches(5)):
        rows, width = inputs["token_ids"].shape
        longest = inputs["lengths"].max()
        assert width % T == 0 and longest <= width < longest + T
        assert rows <= B
        assert rows == 1 or rows * width <= 40
    widths = [x["token_ids"].shape[1] for x, _ in epoch(batches())]
    assert widths == sorted(widths)
    real = sum(LENGTHS)
    padded = sum(x["token_ids"].size for x, _ in epoch(batches()))
    assert padded < 1.5 * real  # all side by side: 30 each, 3.7 times as many


def test_batches_are_a_function_of_seed_and_step():
    def labels(seed, number):
        return [y.tolist() for _, y in epoch(batches(seed), number)]

    assert labels(5, 2) == labels(5, 2)
    orders = [labels(5, 0), labels(5, 1), labels(6, 0), labels(None, 0)]
    for one, other in itertools.combinations(orders, 2):
        assert one != other
    assert labels(None, 0) == labels(None, 1)


def test_the_order_leads_back_to_the_texts():
    of = batches()
    labels = np.concatenate([y for _, y in epoch(of)])
    np.testing.assert_array_equal(
        labels[np.argsort(of.order())], np.arange(len(LENGTHS)) * 10
    )


def test_a_dataset_has_the_batches_again_and_again():
    of = batches(5)
    dataset = of.dataset(of.steps_per_epoch)
    assert len(dataset) == of.steps_per_epoch
    for _ in range(2):
        for step, (inputs, labels) in enumerate(dataset.as_numpy_iterator()):
            np.testing.assert_equal((inputs, labels), of.batch(step))
        assert step == of.steps_per_epoch - 1
    endless = of.dataset().skip(of.steps_per_epoch + 1).take(1)
    ((_, labels),) = endless.as_numpy_iterator()
    np.testing.assert_array_equal(labels, of.batch(of.steps_per_epoch + 1)[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TextBatches(texts(), [0, 1], B, T), "14 and 2"),
        (lambda: TextBatches([], [], B, T), "at least 1. Received: 0 and 0"),
        (lambda: TextBatches([[1], []], [0, 1], B, T), r"token_ids\[1\]=\[\]"),
        (lambda: TextBatches(texts(), LENGTHS, 0, T), "batch_size=0"),
        (lambda: batches(max_batch_tokens=0), "max_batch_tokens=0"),
        (lambda: batches(seed=-1), "seed=-1"),
        (lambda: batches().batch(-1), "step=-1"),
        (lambda: batches().dataset(0), "num_steps=0"),
        (lambda: pad_texts([[1], []]), "n at least 1.*index 1"),
        (lambda: pad_texts(None), "`token_ids`"),
        (lambda: pad_texts([[3], [1.5]]), "dtype float64"),
        (lambda: pad_texts([[3], [2**31]]), "from 2147483648 to"),
        (lambda: pad_texts([[3], [[1, 2]]]), r"shape \(1, 2\) at index 1"),
        *(
            (lambda x=x: TextBatches([[1]], [x], B, T), "`label_ids` must")
            for x in (0.5, -1, None)
        ),
    ],
)
def test_bad_arguments_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
