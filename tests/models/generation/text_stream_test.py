import random

import pytest

from txl_keras.data import WordTokenizer
from txl_keras.models.generation.text_stream import TextStream

TEXT = (
    "Über naïve 漢字 und 👩‍👩‍👧 e\u0301t cetera.\n"
    "\n"
    "  Two spaces, שלום \u2581 \U0010ffff!\r\n"
    "Ünter naïve Über cetera und cetera.\n"
)


def pieces(ids, sizes, seed=0):
    """Cuts ids into pieces of sizes drawn from `sizes`."""
    generator = random.Random(seed)
    while len(ids):
        size = generator.choice(sizes)
        yield ids[:size]
        ids = ids[size:]


def shown(decode_bytes, parts, stop=()):
    stream = TextStream(decode_bytes, stop)
    return "".join([stream.add(part) for part in parts] + [stream.finish()])


def test_the_text_is_that_of_all_ids_at_once():
    tokenizer = WordTokenizer(["<eos>", *dict.fromkeys(TEXT.split())])
    ids = tokenizer.encode(TEXT)
    whole = tokenizer.decode_bytes(ids).decode()
    for word in ("naïve", "漢", "cetera"):
        assert word in whole
    # Its `decode` takes the spaces away that lines begin with: no more.
    assert tokenizer.decode(ids).split() == whole.split()
    for sizes in ([1], [0, 1, 2, 3], [50], [len(ids)]):
        assert shown(tokenizer.decode_bytes, pieces(ids, sizes)) == whole
        # Something is held back for ever where the text might go on.
        stop = ["cetera?", "\n\n\n\n", "x"]
        parts = pieces(ids, sizes)
        assert shown(tokenizer.decode_bytes, parts, stop) == whole
    assert shown(tokenizer.decode_bytes, map(int, ids)) == whole


@pytest.mark.parametrize(
    ("stop", "parts", "shown_parts", "rest"),
    [
        # A character once it is whole, and one that stays half.
        ([], [[x] for x in "a漢é".encode()], ["a", "", "", "漢", "", "é"], ""),
        ([], ["a漢".encode()[:-1]], ["a"], "\ufffd"),
        # After "aba", a "b" shows that the first "ab" is text.
        (
            ["abac", "END"],
            [[x] for x in b"xababaxEENEN"],
            ["x", "", "", "", "ab", "", "abax", "", "E", "", "EN", ""],
            "EN",
        ),
        (
            ["STOP"],
            [b"one ST", b"OP two STOP three", b"four"],
            ["one ", "", ""],
            "",
        ),
        (["!\ufffd"], [b"a!\xc3"], ["a"], ""),
    ],
)
def test_text_is_shown_as_soon_as_it_is_certain(stop, parts, shown_parts, rest):
    stream = TextStream(bytes, stop)
    assert [stream.add(part) for part in parts] == shown_parts
    assert stream.finish() == rest
    assert stream.finish() == ""
    assert stream.is_stopped == (len(stop) == 1)


def first_stop(text, stop):
    """Where a text ends, character by character."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stop if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


def test_any_bytes_end_at_the_first_of_any_stop_strings():
    generator = random.Random(5)
    odd = [*"é漢👧aé".encode(), 0xED, 0xA0, 0xF4, 0x90, 0xC0, 0xE0, 0x80]
    broken = stopped = 0
    for i in range(4000):
        data = bytes(generator.choices(odd, k=14))
        whole = data.decode("utf-8", errors="replace")
        stop = [
            "".join(generator.choices("abé\ufffd", k=generator.randint(1, 3)))
            for _ in range(generator.randint(0, 3))
        ]
        expected = first_stop(whole, stop)
        assert shown(bytes, pieces(data, [1, 2, 4], i), stop) == expected
        broken += "\ufffd" in expected
        stopped += expected != whole
    assert broken > 1000 and stopped > 1000
