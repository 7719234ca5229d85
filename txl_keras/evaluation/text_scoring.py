"""Log-probabilities and hidden states of single texts, many at a time.

Letters: `B` texts read side by side, `T` segment, `M` memory, `D` hidden size,
`P` tokens of one text.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_vocabulary
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.training.strategy import compile_layers
from txl_keras.training.strategy import compile_replica_function


def score_texts(model, tokenizer, texts, contexts=None, **sizes):
    """Nats of every token of some texts: `-log p(token | all before it)`.

    To score again and again, keep a `TextScorer`: this one compiles anew.

    Args:
        model, tokenizer, **sizes: See `TextScorer`.
        texts, contexts: See `TextScorer.score`.

    Returns:
        See `TextScorer.score`.

    Example:

    ```python
    from txl_keras.data import ByteTokenizer
    from txl_keras.evaluation import score_texts
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    answers = ["mat.", "moon."]
    contexts = ["The cat sat on the "] * 2
    scores = score_texts(model, ByteTokenizer(), answers, contexts)
    best = min(range(2), key=lambda i: scores[i][1].sum())
    print(answers[best], "is likelier")
    ```
    """
    sizes.setdefault("batch_size", _batch_size(texts))
    return TextScorer(model, tokenizer, **sizes).score(texts, contexts)


def embed_texts(model, tokenizer, texts, **sizes):
    """Hidden states of every token of some texts.

    Args:
        model, tokenizer, **sizes: See `TextScorer`.
        texts: See `TextScorer.embed`.

    Returns:
        See `TextScorer.embed`.

    Example:

    ```python
    from txl_keras.data import ByteTokenizer
    from txl_keras.evaluation import embed_texts
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    states = embed_texts(model, ByteTokenizer(), ["a cat", "a white cat"])
    vectors = [state.mean(axis=0) for state in states]  # (128,) each
    ```
    """
    sizes.setdefault("batch_size", _batch_size(texts))
    return TextScorer(model, tokenizer, **sizes).embed(texts)


def _batch_size(texts):
    _check_list("texts", texts)
    return max(1, min(16, len(texts)))


class TextScorer:
    """Reads texts of different lengths side by side, each as if alone.

    Long texts are read in segments, with memory from one to the next: a token
    sees its segment and M tokens before that. Time and space a token are thus
    bounded.

    Args:
        model: `TransformerXLCausalLM`.
        tokenizer: Its tokenizer.
        batch_size: Integer `B`. More texts than these are read in turns.
        segment_length: Integer `T`. Shorter texts are padded to it.
        memory_length: Optional integer `M`; by default the model's own. With
            at least the length of a text, all of it is seen.

    Raises:
        ValueError: If the tokenizer has another vocabulary than the model, a
            size is too small, or positions of the model are absolute, counted
            from the end of a segment: padding would change them.

    Example:

    ```python
    from txl_keras.data import ByteTokenizer
    from txl_keras.evaluation import TextScorer
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    scorer = TextScorer(
        model, ByteTokenizer(), batch_size=2, segment_length=8
    )
    for ids, nll in scorer.score(["to be or not", "to be"]):
        print(len(ids), nll[0], nll[1:].mean())  # 12, nan, about 5.5
    ```
    """

    def __init__(
        self,
        model,
        tokenizer,
        batch_size=16,
        segment_length=128,
        memory_length=None,
    ):
        backbone = model.backbone
        check_vocabulary(tokenizer, backbone.vocabulary_size)
        backbone.check_takes_padding()
        self._model = model
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._segment_length = segment_length
        self._reader = SegmentReader(
            backbone, batch_size, segment_length, memory_length
        )
        strategy = tf.distribute.get_strategy()
        self._nll, self._hidden = (
            compile_layers(read, strategy, model, training=False)
            for read in (self._read_nll, self._read_hidden)
        )
        self._remember = compile_replica_function(
            self._reader.remember, strategy
        )

    def score(self, texts, contexts=None):
        """Nats of every token: `-log p(token | context and text before it)`.

        Args:
            texts: List of strings, each of at least one token.
            contexts: Optional list of as many strings, read before the texts
                and not scored. Text and context are made tokens of apart, so
                a subword never spans both. An empty one is none.

        Returns:
            List of pairs, one a text: its ids, `(P,)` int32, and the nats of
            each, `(P,)` float32. Without a context the first token has
            nothing to be predicted from: it is NaN, so that sums of texts
            with and without context are not taken for the same thing;
            `np.nansum` sums the others. Where lines begin with a mark
            (`line_start`), that is the first token.

        Raises:
            ValueError: If a text is empty, the numbers of texts and contexts
                differ, or the tokenizer lacks a symbol.
        """
        _check_list("texts", texts)
        if contexts is None:
            contexts = [""] * len(texts)
        _check_list("contexts", contexts)
        if len(contexts) != len(texts):
            raise ValueError(
                "`contexts` must be as many as `texts`. Received: "
                f"{len(contexts)} contexts, {len(texts)} texts"
            )
        before = [self._encode(context) for context in contexts]
        ids = [
            self._encode(text, context)
            for text, context in zip(texts, contexts, strict=True)
        ]
        _check_no_empty_text(texts, ids)
        whole = [
            np.concatenate(parts) for parts in zip(before, ids, strict=True)
        ]
        found = self._read(self._nll, [(w[:-1], w[1:]) for w in whole])
        # The first of all has no score; then the scores of the context.
        return [
            (text, np.append(np.float32(np.nan), nll)[-len(text) :])
            for text, nll in zip(ids, found, strict=True)
        ]

    def embed(self, texts):
        """Hidden states after the last layer, from which the next token is.

        Args:
            texts: List of strings, each of at least one token.

        Returns:
            List of float32 arrays of shape `(P, D)`, one a text.

        Raises:
            ValueError: If a text is empty or the tokenizer lacks a symbol.
        """
        _check_list("texts", texts)
        ids = [self._encode(text) for text in texts]
        _check_no_empty_text(texts, ids)
        return self._read(self._hidden, [(text,) for text in ids])

    def _encode(self, text, context=""):
        begins_line = not context or context[-1:] in ("\n", b"\n")
        ids = self._tokenizer.encode(text, begins_line=begins_line)
        return np.asarray(ids, np.int32)

    def _read_nll(self, inputs, targets):
        hidden, entries = self._reader.read(inputs)
        return self._model.softmax(hidden, targets), entries

    def _read_hidden(self, inputs):
        hidden, entries = self._reader.read(inputs)
        return tf.cast(hidden, tf.float32), entries

    def _read(self, read, texts):
        """What a compiled function finds at every token of every text.

        Args:
            read: `_nll` or `_hidden`.
            texts: List of tuples of id arrays `(n,)`, what it takes.

        Returns:
            List of arrays `(n, ...)`.
        """
        self._reader.begin()
        found = [None] * len(texts)
        # Those of about one length together: little is padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
        for start in range(0, len(order), self._batch_size):
            rows = order[start : start + self._batch_size]
            batch = self._read_batch(read, [texts[i] for i in rows])
            for i, outputs in zip(rows, batch, strict=True):
                found[i] = outputs
        return found

    def _read_batch(self, read, rows):
        self._reader.reset_rows(tf.fill((self._batch_size,), True))
        lengths = np.zeros(self._batch_size, np.int32)
        lengths[: len(rows)] = [len(row[0]) for row in rows]
        parts = [[] for _ in rows]
        # Once at least: a text of one token alone has a score of none.
        for start in range(0, max(1, lengths.max()), self._segment_length):
            arguments = [
                self._segment(arrays, start)
                for arrays in zip(*rows, strict=True)
            ]
            outputs, entries = read(*arguments)
            left = np.clip(lengths - start, 0, self._segment_length)
            self._remember(entries, tf.constant(left, tf.int32))
            outputs = outputs.numpy()
            for part, values, count in zip(parts, outputs, left, strict=False):
                part.append(values[:count])
        return [np.concatenate(part) for part in parts]

    def _segment(self, arrays, start):
        """`(B, T)` int32 of the ids from `start` on, padded with 0."""
        segment = np.zeros((self._batch_size, self._segment_length), np.int32)
        for row, ids in zip(segment, arrays, strict=False):
            ids = ids[start : start + self._segment_length]
            row[: len(ids)] = ids
        return tf.constant(segment)


def _check_list(name, texts):
    if isinstance(texts, (str, bytes)):
        raise ValueError(
            f"`{name}` must be a list of strings. Received: the string "
            f"{texts[:40]!r}; put it in a list"
        )
    if not isinstance(texts, (Sequence, np.ndarray)):
        raise ValueError(
            f"`{name}` must be a list of strings. Received: {texts!r} of type "
            f"{type(texts).__name__}"
        )
    for i, text in enumerate(texts):
        if not isinstance(text, (str, bytes)):
            raise ValueError(
                f"`{name}` must be strings. Received: {name}[{i}]={text!r}"
            )


def _check_no_empty_text(texts, ids):
    for i, text in enumerate(ids):
        if not len(text):
            raise ValueError(
                "`texts` must have at least one token each. Received: "
                f"texts[{i}]={texts[i][:40]!r}"
            )
