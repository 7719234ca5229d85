"""Decoding of token ids into text while they are generated."""

import codecs
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np


class TextStream:
    """Decodes token ids into text incrementally, up to a stop string.

    The concatenated results of `add` and `finish` are the text of all ids,
    `decode_bytes(all ids).decode("utf-8", errors="replace")`, up to the first
    stop string. They do not depend on how the ids are divided among the calls.
    The time of a call does not grow with the preceding text.

    `decode_bytes` of a word tokenizer puts a space before every word, even at
    the start of a line, so a stop string must have it, too: `"\\n The"`.

    Args:
        decode_bytes: Function of integers `(n,)` that returns `bytes`, such as
            a tokenizer's `decode_bytes`.
        stop: String or strings that end the text. The string that is completed
            first counts, or the longest if several end at one character.
        known: `bytes` with which the first ids begin; left out of the text.

    Attributes:
        is_stopped: Boolean, true once a stop string was found.

    Example:

    ```python
    from txl_keras.data import ByteTokenizer
    from txl_keras.models.generation.text_stream import TextStream

    stream = TextStream(ByteTokenizer().decode_bytes, stop=["END"])
    assert stream.add([195]) == ""  # half a character
    assert stream.add([169, 69, 78]) == "é"  # "EN" may become "END"
    assert stream.add([68, 33]) == ""
    assert stream.is_stopped
    ```
    """

    def __init__(
        self,
        decode_bytes: Callable,
        stop: str | Sequence[str] = (),
        known: bytes = b"",
    ):
        stop = (stop,) if isinstance(stop, str) else stop
        self._stop = tuple(stop) if hasattr(stop, "__iter__") else (None,)
        if not all(isinstance(text, str) and text for text in self._stop):
            raise ValueError(
                "`stop` must be a string or a sequence of strings, none of "
                f"them empty. Received: stop={stop!r}"
            )
        self._decode_bytes = decode_bytes
        self._bytes = b""  # of a character that is still incomplete
        self._held = ""
        self._num_known = len(known)
        self.is_stopped = False

    def add(self, ids: Sequence[int] | np.ndarray) -> str:
        """Adds the next ids and returns the text that is now certain.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.

        Returns:
            String of complete characters that cannot become part of a stop
            string. It ends before the first stop string; all later calls
            return an empty string.
        """
        if self.is_stopped:
            return ""
        data = self._bytes + self._decode_bytes(ids)[self._num_known :]
        self._num_known = 0
        text, num_decoded = codecs.utf_8_decode(data, "replace", False)
        self._bytes = data[num_decoded:]
        shown = self._up_to_stop(self._held + text)
        kept = 0 if self.is_stopped else self._num_possible(shown)
        self._held = shown[len(shown) - kept :]
        return shown[: len(shown) - kept]

    def finish(self) -> str:
        """Returns the remaining text, after the last ids.

        Returns:
            String, the text that `add` held back. An incomplete character
            becomes U+FFFD.
        """
        if self.is_stopped:
            return ""
        text = self._held + self._bytes.decode("utf-8", "replace")
        self._held, self._bytes = "", b""
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
        """Returns the length of the longest suffix that may begin a stop."""
        longest = max(map(len, self._stop), default=0)
        for length in range(min(len(text), longest - 1), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
