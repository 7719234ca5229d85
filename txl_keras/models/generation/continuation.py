"""Holds what follows one prompt."""

import copy

import numpy as np


class Continuation:
    """Collects the tokens after one prompt until something ends them."""

    def __init__(self, stream, max_tokens, stop_token_ids):
        self._stream = stream  # a `TextStream`, or None to collect ids
        self._num_left = max_tokens
        self._stop_token_ids = stop_token_ids
        self._pieces = []
        self.is_ended = max_tokens == 0

    def copy(self):
        """Returns a continuation that is independent of this one."""
        other = copy.copy(self)
        other._stream = copy.copy(self._stream)
        other._pieces = list(self._pieces)
        return other

    def add(self, token):
        """Adds a token; ignores it after the end."""
        if self.is_ended:
            return
        token = int(token)
        self._num_left -= 1
        is_stop = token in self._stop_token_ids
        self.is_ended = is_stop or self._num_left == 0
        if self._stream is None:
            self._pieces += [] if is_stop else [token]
            return
        if not is_stop:
            self._pieces.append(self._stream.add(token))
        self.is_ended |= self._stream.is_stopped
        if self.is_ended:
            self._pieces.append(self._stream.finish())

    def take(self):
        """Returns what is certain and was not taken yet: text or int32 ids."""
        pieces, self._pieces = self._pieces, []
        if self._stream is None:
            return np.array(pieces, np.int32)
        return "".join(pieces)
