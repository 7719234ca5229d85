import numpy as np
import pytest

from txl_keras.data.statistics import typical_passage


def starts_of_lines(text):
    return [0, *(np.flatnonzero(text == ord("\n")) + 1)]


@pytest.mark.parametrize("length", [8, 30])
def test_a_prompt_begins_a_line_and_is_no_ruler(length):
    ruler = "-" * 60 + "\n"
    lines = ["the first line of words\n", "and then another, of more words\n"]
    text = np.frombuffer("".join([ruler, ruler, *lines] * 3).encode(), "uint8")
    passage = typical_passage(text, starts_of_lines(text), length)
    assert passage.tobytes() == "".join(lines).encode()[:length]


def test_a_text_shorter_than_a_prompt_is_taken_whole():
    text = np.array([3, 1, 4])
    assert typical_passage(text, [0, 2], 5).tolist() == [3, 1, 4]
    assert typical_passage(text, [], 2).tolist() == [3, 1]
