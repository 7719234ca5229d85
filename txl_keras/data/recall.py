"""A task that only memory can solve: recall a value that was written before.

Letters: `n` tokens of a stream, `K` keys, `V` values.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_token_ids


class RecallTask:
    """Generates token ids in which values must be recalled by their keys.

    A *write* is one token that stands for a key and a random value. Some time
    later a *query* names the key, and the next token, the *answer*, is the
    value. In between there are *fillers*, and writes and queries of other keys:

    ```
    write(3, 5)  filler  write(0, 2)  filler  query(3)  answer(5)  ...
    ```

    A key is written again only after it was asked for, and asked for once per
    write. So each value is in the stream once before its answer, and only a
    model that remembers the write can do better than chance, 1 / V. The
    distance from write to query is log-uniform up to `max_distance`: short ones
    are common, so that training begins to learn without a curriculum.

    | ids | token |
    | --- | --- |
    | 0 | filler |
    | 1 + k V + v | write of value v with key k |
    | 1 + K V + k | query of key k |
    | 1 + K V + K + v | answer v |

    Args:
        num_keys: Integer `K`.
        num_values: Integer `V`, at least 2.
        max_distance: Integer, at least 2, the longest distance in tokens. A few
            are longer, where a query waits for others to end.

    Attributes:
        vocabulary_size: Integer, the number of ids.

    Raises:
        ValueError: If a number is too small.

    Example:

    ```python
    from txl_keras.data import RecallTask, Segments

    task = RecallTask(num_keys=4, num_values=4, max_distance=48)
    tokens = task.stream(8 * 16 * 50 + 1, seed=1)
    segments = Segments(tokens, 8, 16, drop_remainder=True)
    dataset = segments.dataset(num_steps=len(segments))
    dataset = dataset.map(task.score_answers)  # for `fit`
    ```
    """

    def __init__(self, num_keys=8, num_values=8, max_distance=384):
        self.num_keys = check_integer("num_keys", num_keys, 1)
        self.num_values = check_integer("num_values", num_values, 2)
        self.max_distance = check_integer("max_distance", max_distance, 2)
        self._first_query = 1 + num_keys * num_values
        self._first_answer = self._first_query + num_keys
        self.vocabulary_size = self._first_answer + num_values

    def stream(self, num_tokens, seed=0):
        """Generates a stream of tokens.

        Args:
            num_tokens: Integer `n`.
            seed: Integer. The same numbers give the same stream.

        Returns:
            int32 array of shape `(n,)`.
        """
        check_integer("num_tokens", num_tokens, 1)
        generator = np.random.default_rng(check_integer("seed", seed, 0))
        starts, keys, values, is_query = self._events(generator, num_tokens)
        tokens = np.zeros(num_tokens + 1, np.int32)
        writes, queries = starts[~is_query], starts[is_query]
        tokens[writes] = 1 + (keys * self.num_values + values)[~is_query]
        tokens[queries] = self._first_query + keys[is_query]
        tokens[queries + 1] = self._first_answer + values[is_query]
        return tokens[:-1]

    def distances(self, tokens):
        """Computes how far back each answer was written.

        Args:
            tokens: Integer array of shape `(n,)`, a stream.

        Returns:
            int32 array of shape `(n,)`: for every answer the number of tokens
            from its write to its query, and 0 for all other tokens and where
            the write is not in `tokens`.

        Example:

        >>> task = RecallTask(num_keys=2, num_values=3)
        >>> tokens = [1, 0, 4, 7, 9, 0, 8, 10]  # two writes, two answers
        >>> task.distances(tokens).tolist()
        [0, 0, 0, 0, 3, 0, 0, 4]
        """
        tokens = np.asarray(
            check_token_ids("tokens", tokens, self.vocabulary_size)
        )
        distances = np.zeros(len(tokens), np.int32)
        for key in range(self.num_keys):
            first = 1 + key * self.num_values
            writes = np.flatnonzero(
                (tokens >= first) & (tokens < first + self.num_values)
            )
            queries = np.flatnonzero(tokens[:-1] == self._first_query + key)
            latest = np.searchsorted(writes, queries) - 1
            queries, latest = queries[latest >= 0], latest[latest >= 0]
            distances[queries + 1] = queries - writes[latest]
        return distances

    def score_answers(self, batch):
        """Returns a batch of `Segments` in which only answers are targets.

        For `dataset.map`: nothing else in a stream can be predicted.

        Args:
            batch: Dictionary of tensors, as in `Segments.dataset`.

        Returns:
            Dictionary of tensors.
        """
        inputs = batch["inputs"]
        is_query = (inputs >= self._first_query) & (inputs < self._first_answer)
        weights = tf.cast(is_query, tf.float32) * batch["weights"]
        num_targets = tf.reduce_sum(weights)
        return {**batch, "weights": weights, "num_targets": num_targets}

    def _events(self, generator, num_tokens):
        """Draws writes and queries: positions, keys, values, kinds."""
        # About the mean of e^u, for u uniform from 0 to ln(max).
        mean_distance = self.max_distance / np.log(self.max_distance)
        # An event takes up to 2 tokens: about a third of all are no fillers.
        mean_wait = max(9 * self.num_keys - mean_distance, self.num_keys)
        rounds = int(2 * num_tokens / (mean_wait + mean_distance)) + 9
        shape = self.num_keys, rounds
        waits = generator.exponential(mean_wait, shape)
        exponents = generator.uniform(0, np.log(self.max_distance + 1), shape)
        values = generator.integers(self.num_values, size=shape)
        # [K, rounds, 2]: a wait, the write, a distance, the query.
        gaps = np.stack([waits + 1, np.exp(exponents)], axis=-1).astype(int)
        times = gaps.reshape(self.num_keys, -1).cumsum(axis=1)
        order = np.argsort(times, axis=None, kind="stable")
        times = times.ravel()[order]
        keys, places = np.divmod(order, 2 * rounds)
        is_query = places % 2 == 1
        # An event that would overlap the one before it begins where that ends.
        sizes = 1 + is_query
        before = np.cumsum(sizes) - sizes
        starts = before + np.maximum.accumulate(times - before)
        events = starts, keys, values[keys, places // 2], is_query
        return [array[starts < num_tokens] for array in events]
