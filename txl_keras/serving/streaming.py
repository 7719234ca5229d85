"""Turns ids into text while they are generated."""

import codecs


class TextStream:
    """Text of ids that come one after the other.

    What `add` and `finish` return is, together, the text of all ids up to the
    first stop string:
    `decode_bytes(all ids).decode("utf-8", errors="replace")`, however the ids
    were divided among the calls. The time a call takes does not grow with the
    text before it.

    Tokenizers of words put a space before every word, also before the first
    one of a line, which their `decode` takes away: a stop string with a
    newline in it must have the space as well, as `"\\n The"`.

    Args:
        decode_bytes: Function of an integer array of shape `(n,)` that returns
            `bytes`, such as a tokenizer's `decode_bytes`. Those of several
            calls must fit together: joined, they are the bytes of all ids.
        stop: Sequence of strings that end the text. The first to be complete
            counts, of several that end at the same character the longest.

    Attributes:
        is_stopped: Boolean, whether a stop string has come.

    Raises:
        ValueError: If `stop` is no sequence of strings, or one is empty.

    Example:

    ```python
    from txl_keras.data.tokenizers import ByteTokenizer
    from txl_keras.serving.streaming import TextStream

    stream = TextStream(ByteTokenizer().decode_bytes, stop=["END"])
    assert stream.add([195]) == ""  # half a character
    assert stream.add([169, 69, 78]) == "é"  # "EN" may become "END"
    assert stream.add([68, 33]) == ""
    assert stream.is_stopped
    ```
    """

    def __init__(self, decode_bytes, stop=()):
        self._stop = _checked_stop(stop)
        self._decode_bytes = decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.is_stopped = False

    def add(self, ids):
        """Takes the next ids.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.

        Returns:
            String, the text that can be shown now: whole characters, of which
            none may become a part of a stop string. It ends before the first
            stop string; after that one it is empty.
        """
        if self.is_stopped:
            return ""
        text = self._decoder.decode(self._decode_bytes(ids))
        shown = self._up_to_stop(self._held + text)
        kept = 0 if self.is_stopped else self._num_possible(shown)
        self._held = shown[len(shown) - kept :]
        return shown[: len(shown) - kept]

    def finish(self):
        """Says that no more ids come.

        Returns:
            String, what was held back. Half a character becomes U+FFFD.
        """
        if self.is_stopped:
            return ""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return self._up_to_stop(text)

    def _up_to_stop(self, text):
        found = [
            (start + len(stop), start)
            for stop in self._stop
            if (start := text.find(stop)) >= 0
        ]
        if not found:
            return text
        self.is_stopped = True
        return text[: min(found)[1]]

    def _num_possible(self, text):
        """Length of the longest end of a text that begins a stop string."""
        longest = max(map(len, self._stop), default=0)
        for length in range(min(len(text), longest - 1), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0


def _checked_stop(stop):
    is_sequence = hasattr(stop, "__iter__") and not isinstance(stop, str)
    strings = tuple(stop) if is_sequence else ()
    if not is_sequence or not all(isinstance(s, str) and s for s in strings):
        raise ValueError(
            "`stop` must be a sequence of strings that are not empty. "
            f"Received: stop={stop!r}"
        )
    return strings
