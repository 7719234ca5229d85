import numpy as np
import pytest

from txl_keras.data import IdTokenizer


def test_ids_stay_as_they_are_and_are_written_as_numbers():
    tokenizer = IdTokenizer(300)
    for ids in ([7, 299, 0], np.array([7, 299, 0], ">i8")):
        assert tokenizer.decode(ids) == "7 299 0"
        encoded = tokenizer.encode(np.array(ids))
        assert encoded.tolist() == [7, 299, 0]
        assert encoded.dtype == np.uint16
    assert tokenizer.encode("7,299\n 0").tolist() == [7, 299, 0]
    assert tokenizer.encode(b"").tolist() == []
    # The bytes of parts are the parts of the bytes, for `TextStream`.
    parts = tokenizer.decode_bytes([7, 299]) + tokenizer.decode_bytes(0)
    assert parts == tokenizer.decode_bytes([7, 299, 0])


@pytest.mark.parametrize(
    "ids, message",
    [
        (np.array([1, 9, 300]), "300 at position 2"),
        (np.array([1, -1]), "-1 at position 1"),
        ("5 8 4000", "4000 at position 2"),
        ("5 -8", "'-8'"),
        ("5 1e3", "'1e3'"),
        ("5 é", "numbers .*'é'"),
        (f"5 {10**30}", "100000000"),
        ([1, 2], "`text` must be"),
        (np.array([1.0, 2.7]), "`text` must hold integers.*float64"),
    ],
)
def test_what_is_no_id_is_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        IdTokenizer(300).encode(ids)


@pytest.mark.parametrize("size", [0, 2**31, 3.0, None])
def test_the_size_of_the_vocabulary_is_checked(size):
    with pytest.raises(ValueError, match="`vocabulary_size` must be"):
        IdTokenizer(size)
