"""Methods of a language model that read and write text.

More letters: `P` tokens of one text.
"""

import copy
import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from txl_keras import samplers
from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.layers.memory import Memory
from txl_keras.models.fit_data import as_data
from txl_keras.models.generation.generator import BeamSearch
from txl_keras.models.generation.generator import Generator
from txl_keras.models.generation.generator import Readers
from txl_keras.models.generation.generator import as_they_are
from txl_keras.models.generation.generator import repeat_rows
from txl_keras.models.generation.prompts import Continuation
from txl_keras.models.generation.prompts import after_line_end
from txl_keras.models.generation.prompts import encode_texts
from txl_keras.models.generation.prompts import known_bytes
from txl_keras.models.generation.prompts import num_new_tokens
from txl_keras.models.generation.prompts import read_prompts
from txl_keras.models.generation.text_stream import TextStream
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.models.segment_reader import as_float32


class TextMethods:
    """Adds methods for text to `TransformerXLCausalLM`.

    Attributes:
        sampler: The sampler of `generate`, see `compile`. Before `compile` it
            draws from the model's distribution without changes.
    """

    sampler = samplers.Sampler()
    _made = None

    def generate(
        self,
        prompts: Any,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        stop_token_ids: Sequence[int] | np.ndarray = (),
        stop: str | Sequence[str] = (),
        strip_prompt: bool = False,
        sampler: Any = None,
        seed: int | None = None,
        stream: bool = False,
        memory_length: int | None = None,
        engine: str = "tensorflow",
        memory: Memory | None = None,
        num_return_sequences: int = 1,
        return_log_probs: bool = False,
        return_memory: bool = False,
        **engine_options: Any,
    ) -> Any:
        """Continues prompts of text or token ids.

        Time and space per token are constant, because keys, values and
        positions are cached. A model with absolute positions reads the last M
        tokens again for each token. Prompts may be longer than memory.

        A prompt may end with a space or inside of a word: with a lossless
        subword tokenizer, the last subword of the prompt is drawn again, among
        subwords that begin with it (token healing). It is not a new token.

        The rows of a batch do not affect each other. Calls with the same number
        of rows, memory length and engine reuse compiled functions; another
        sampler compiles only its draws. Finish a stream before you change
        weights.

        Args:
            prompts: String, or a list, a tensor or a dataset of strings, for a
                model with a `tokenizer`; or token ids: an integer sequence of
                shape `(P,)`, a list of such sequences, which may differ in
                length, or an array `(B, P)`. Without `memory`, a lossless
                tokenizer of subwords reads a line end before each string.
            max_length: Optional integer. The most tokens of prompt and
                continuation together.
            max_new_tokens: Optional integer. The most tokens after each
                prompt; 256 if `max_length` is not given either.
            stop_token_ids: Sequence of token ids. A row ends before the first
                of them.
            stop: String or sequence of strings, for prompts of text. A row ends
                before the first of them, see `TextStream`.
            strip_prompt: Boolean. If true, the result leaves out the prompt.
            sampler: Optional sampler or name (see `txl_keras.samplers.get`) to
                use instead of the sampler of `compile`.
            seed: Optional integer. Row r draws with `seed + r`. By default each
                call uses a new seed; `keras.utils.set_random_seed` makes it
                reproducible. `BeamSampler` does not draw.
            stream: Boolean. If true, returns an iterator that yields the
                continuation as soon as it is certain; `BeamSampler` at the end.
            memory_length: Optional integer `M`; by default the model's own, or
                its number of positions, which M must not exceed. Required for a
                model with neither: pass the segment length of training.
            engine: String, the implementation that decodes token by token:
                `"tensorflow"`, or the name of an extension's engine.
            memory: Optional `Memory` of M entries and one row per prompt, to
                continue from: a result of `return_memory`, `score` or
                `log_probs`. Text then continues a line. A repetition penalty
                does not count the tokens in memory.
            num_return_sequences: Integer `n`, continuations per prompt. The
                first n rows belong to the first prompt. Not for `BeamSampler`.
            return_log_probs: Boolean. If true, also returns the log-probability
                of each generated token, before the sampler changes it. If the
                last token of the prompt is drawn again (see above), it is the
                first. Not for `BeamSampler` and `stream`.
            return_memory: Boolean. If true, also returns the `Memory` after the
                texts, which are read once more for it. Not for `stream`.
            **engine_options: Arguments of the engine.

        Returns:
            A string, or an int32 array, of prompt and continuation; for a batch
            or several sequences a list of them. With `stream`, an iterator of
            parts; joined (`"".join`, `np.concatenate`) they equal the result
            with `strip_prompt`. For a batch each part is a list with one part
            per row.

            With `return_log_probs` or `return_memory` a tuple: the above; a
            float32 array per row, which includes tokens of `stop` but not the
            token of `stop_token_ids` that ended the row; and a `Memory`.

        Raises:
            FloatingPointError: If the model returns NaN.

        Example:

        ```python
        from txl_keras.data import ByteTokenizer
        from txl_keras.models import TransformerXLCausalLM

        model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
        model.tokenizer = ByteTokenizer()
        text = model.generate("def main(", max_new_tokens=4, seed=1)
        for part in model.generate("import ", max_new_tokens=4, stream=True):
            print(part, end="")
        ids = model.generate([[5, 6, 7], [8]], max_length=9, sampler="greedy")

        text, memory = model.generate(
            "Hello", max_new_tokens=4, return_memory=True
        )
        text = model.generate(" and", max_new_tokens=4, memory=memory)
        ```
        """
        sampler = samplers.get(self.sampler if sampler is None else sampler)
        prompts, ids, is_single = read_prompts(
            self, as_data(prompts), begins_line=memory is None
        )
        lengths = num_new_tokens(ids, max_length, max_new_tokens)
        count = check_integer("num_return_sequences", num_return_sequences, 1)
        check_list("stop_token_ids", stop_token_ids)
        if len(stop_token_ids):
            vocabulary_size = self.backbone.vocabulary_size
            stop_token_ids = check_token_ids(
                "stop_token_ids", stop_token_ids, vocabulary_size
            )
            check_shape("stop_token_ids", stop_token_ids, (None,))
        is_text = prompts is not ids
        known, streams = [b""] * len(ids), [None] * len(ids)
        if is_text:
            if memory is None:
                ids = after_line_end(self.tokenizer, ids)
            known = [known_bytes(self.tokenizer, row) for row in ids]
            decode = self.tokenizer.decode_bytes
            streams = [TextStream(decode, stop, begun) for begun in known]
        elif stop:
            raise ValueError(
                "`stop` must be empty for prompts of token ids. Use "
                f"`stop_token_ids`, or prompts of text. Received: stop={stop!r}"
            )
        limit = np.iinfo(np.int32).max - len(ids) * count
        seed = random.randrange(limit) if seed is None else seed
        check_integer("seed", seed, 0, limit)
        is_beam = isinstance(sampler, samplers.BeamSampler)
        is_wrong = (is_beam or stream) and return_log_probs
        if is_wrong or is_beam and count > 1 or stream and return_memory:
            raise ValueError(
                "A BeamSampler supports neither `num_return_sequences` above 1 "
                "nor `return_log_probs`, and `stream` neither "
                "`return_log_probs` nor `return_memory`."
            )
        readers = self._keep(
            Readers,
            self,
            memory_length,
            engine,
            tuple(sorted(engine_options.items())),
            None if is_beam else as_they_are,
        )
        generator = self._keep(
            BeamSearch if is_beam else Generator,
            self,
            readers,
            sampler,
            bool(return_log_probs),
        )
        if memory is not None or return_memory:
            memory = readers.initial_memory(memory, len(ids))
            memory = repeat_rows(memory, count)
        rows = [
            Continuation(prompt, most, stop_token_ids, copy.copy(stream), begun)
            for prompt, most, stream, begun in zip(
                ids, lengths, streams, known, strict=True
            )
            for _ in range(count)
        ]
        steps = generator(rows, seed, memory)

        def as_given(values):
            return values[0] if is_single and count == 1 else values

        if stream:
            return (as_given(parts) for parts in steps if any(map(len, parts)))
        for _ in steps:
            pass
        texts = [row.result() for row in rows]
        if not strip_prompt:
            before = [prompt for prompt in prompts for _ in range(count)]
            join = str.__add__ if is_text else np.append
            texts = list(map(join, before, texts))
        results = [as_given(texts)]
        if return_log_probs:
            found = [np.array(row.log_probs, np.float32) for row in rows]
            results.append(as_given(found))
        if return_memory:
            read = [row.tokens(self.tokenizer) for row in rows]
            results.append(readers.memory_after(read, memory))
        return results[0] if len(results) == 1 else tuple(results)

    def score_texts(
        self,
        texts: Sequence[str],
        contexts: Sequence[str] | None = None,
        batch_size: int | None = None,
        segment_length: int = 128,
        memory_length: int | None = None,
    ) -> list:
        """Computes the loss of every token of some texts.

        The loss is `-log p(token | context and preceding tokens)` in nats. Each
        text is read independently of the others. Calls with the same sizes
        reuse compiled functions. For token ids see `score`.

        Args:
            texts: List of strings, each of at least one token.
            contexts: Optional list of as many strings, read before the texts
                but not scored. Context and text are tokenized separately, so
                no subword spans both. An empty string means no context.
            batch_size: Optional integer, the number of texts to read in
                parallel; by default all texts, but at most 16.
            segment_length: Integer `T`. Longer texts are read in segments,
                shorter ones are padded.
            memory_length: Optional integer `M`; by default the model's own. A
                token attends to its own segment and to M tokens before it.

        Returns:
            List of pairs, one per text: its ids, int32 `(P,)`, and their
            losses, float32 `(P,)`. Without a context the first token cannot be
            predicted, and its loss is NaN. A sum is then NaN, too, so that it
            is not mistaken for the sum of a text with context; `np.nansum` sums
            the other tokens. If the tokenizer has a `line_start`, this is the
            first token.

        Example:

        ```python
        from txl_keras.data import ByteTokenizer
        from txl_keras.models import TransformerXLCausalLM

        model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
        model.tokenizer = ByteTokenizer()
        for ids, nll in model.score_texts(["mat", "moon"], ["on the "] * 2):
            print(nll.sum())  # of 3 and of 4 tokens
        ```
        """
        check_list("texts", texts)
        if contexts is None:
            contexts = [""] * len(texts)
        before = encode_texts(self, "contexts", contexts)
        if len(contexts) != len(texts):
            raise ValueError(
                "`contexts` must be as many as `texts`. Received: "
                f"{len(contexts)} contexts, {len(texts)} texts"
            )
        begins_line = [not c or c[-1:] in ("\n", b"\n") for c in contexts]
        ids = encode_texts(self, "texts", texts, begins_line)
        whole = [*map(np.append, before, ids)]
        texts = [w[:-1] for w in whole], [w[1:] for w in whole]
        sizes = batch_size, segment_length, memory_length
        found = self._read_texts(self.softmax, texts, *sizes)
        # NaN for the first token, then the context, which is cut off.
        return [
            (text, np.append(np.float32(np.nan), nll)[-len(text) :])
            for text, nll in zip(ids, found, strict=True)
        ]

    def embed_texts(
        self,
        texts: Sequence[str],
        pooling: str | None = None,
        batch_size: int | None = None,
        segment_length: int = 128,
        memory_length: int | None = None,
    ) -> Any:
        """Returns hidden states of the last layer for some texts.

        Args:
            texts: List of strings, each of at least one token.
            pooling: `None` for the states of all tokens, `"mean"` for their
                mean, or `"last"` for the state of the last token.
            batch_size, segment_length, memory_length: See `score_texts`.

        Returns:
            List of float32 arrays `(P, D)`, one per text. With `pooling`, one
            array `(len(texts), D)`.

        Example:

        ```python
        from txl_keras.data import ByteTokenizer
        from txl_keras.models import TransformerXLCausalLM

        model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
        model.tokenizer = ByteTokenizer()
        states = model.embed_texts(["a cat", "a white cat"])  # (5, D), (11, D)
        vectors = model.embed_texts(["a cat"], pooling="mean")  # (1, D)
        ```
        """
        check_one_of("pooling", pooling, (None, "mean", "last"))
        ids = encode_texts(self, "texts", texts)
        sizes = batch_size, segment_length, memory_length
        states = self._read_texts(as_float32, [ids], *sizes)
        if pooling is None:
            return states
        pool = {"mean": lambda x: x.mean(axis=0), "last": lambda x: x[-1]}
        vectors = [*map(pool[pooling], states)]
        return np.reshape(vectors, (len(texts), self.backbone.hidden_dim))

    def _read_texts(self, function, texts, batch_size, *lengths):
        """Reads each text from a cold start with `SegmentReader.read_texts`."""
        self.backbone.check_takes_padding()
        # Batches of similar lengths need little padding.
        order = sorted(range(len(texts[0])), key=lambda i: len(texts[0][i]))
        if batch_size is None:
            batch_size = max(1, min(16, len(order)))
        reader = self._keep(SegmentReader, self.backbone, batch_size, *lengths)
        found = {}
        with reader.lock:
            reader.begin()
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                reader.reset_rows(ops.ones(batch_size, "bool"))
                parts = ([x[i] for i in rows] for x in texts)
                results = reader.read_texts(function, *parts)
                found |= zip(rows, results, strict=True)
        return [found[i] for i in range(len(order))]

    def _keep(self, make, *settings):
        """Returns `make(*settings)`, or its result of an earlier call."""
        replicas = 1
        if ON_TENSORFLOW:
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise RuntimeError(
                "Text is read and written on one device. Call this method "
                "outside of `strategy.scope()`. Received: a strategy of "
                f"{replicas} replicas"
            )
        if self._made is None:
            self._made = functools.lru_cache(maxsize=4)(
                lambda variables, make, *settings: make(*settings)
            )
        # After `quantize`, for example, the variables differ.
        variables = tuple(
            weight.value.ref() if ON_TENSORFLOW else (id(weight), weight.dtype)
            for weight in self.weights
        )
        return self._made(variables, make, *settings)
