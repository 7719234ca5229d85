"""Autoregressive text generation.

Letters: `B` batch, `P` prompt, `T` segment, `M` memory, `V` vocabulary.
"""

import functools

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import shown
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.models.generation.openvino_decoder import OpenVinoDecoder
from txl_keras.models.generation.openvino_decoder import check_engine
from txl_keras.models.generation.token_reader import TokenReader
from txl_keras.models.generation.token_reader import WindowReader
from txl_keras.models.generation.token_reader import check_prompts
from txl_keras.samplers.sampler import Sampler


class Generator:
    """Generates text in constant time and space per token.

    Keys, values and positions are projected only once (see `SegmentReader`).
    Prompts may be longer than memory; they are read in segments of 128 tokens.

    Args:
        model: `TransformerXLCausalLM`.
        sampler: `Sampler` whose parameters are numbers; by default one that
            draws from the unchanged distribution of the model.
        memory_length: Optional integer `M`; by default the model's own. A
            model with absolute positions (see `attention_type`) has no memory:
            for every new token it reads the last M tokens again, and M must
            not exceed its number of positions.
        engine: String, what decodes token by token: `"tensorflow"`, or
            `"openvino"`, which is faster on CPUs. It needs the package
            openvino and a model with relative attention. TensorFlow reads the
            prompts and samples in either case.
        weights: String, the dtype of the weights of OpenVINO: `"float32"`,
            `"bfloat16"`, or `"int8"`, rounded with one scale per output.

    Raises:
        ImportError: If `engine` is `"openvino"`, which is not installed.

    Example:

    ```python
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.serving import Generator, Sampler

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    write = Generator(model, Sampler(top_k=10), memory_length=32)
    for tokens in write([[5, 6, 7], [8]], max_tokens=4, seed=1):
        print(tokens)  # int32 array of shape (2,), one token per row
    ```
    """

    def __init__(
        self,
        model,
        sampler=None,
        memory_length=None,
        engine="tensorflow",
        weights="float32",
    ):
        self._model = model
        self._sampler = Sampler() if sampler is None else sampler
        if not isinstance(self._sampler, Sampler):
            raise ValueError(
                "`sampler` must be a Sampler of `txl_keras.samplers`; "
                "`model.generate` also takes names and a BeamSampler. "
                f"Received: sampler={shown(sampler)}"
            )
        if memory_length is None:
            memory_length = model.backbone.default_memory_length
        self._memory_length = check_integer(
            "memory_length",
            memory_length,
            0,
            model.backbone.max_segment_length,
        )
        check_engine(engine, weights, model, self._memory_length)
        self._weights = None if engine == "tensorflow" else weights
        self._window = WindowReader(model, self._memory_length)
        self._step = None
        self._num_weights = len(model.weights)

    def __call__(self, prompts, max_tokens, seed=0):
        """Returns an iterator over the tokens that follow the prompts.

        The rows do not affect each other. Arguments are checked at once, not
        when the first token is requested.

        Args:
            prompts: Integer array of shape `(B, P)`, or a list of B sequences
                of at least one token id, which may differ in length.
            max_tokens: Integer, the number of tokens to generate per row.
            seed: Integer. Row r draws with `seed + r`. The same seed gives the
                same text.

        Returns:
            Iterator over `max_tokens` int32 arrays of shape `(B,)`.

        Raises:
            FloatingPointError: If the model returns NaN. The iterator raises
                it.
        """
        if len(self._model.weights) != self._num_weights:
            # The compiled functions would go on with the old kernels.
            raise ValueError(
                "`model` must have the weights that it had when the Generator "
                "was created. Create a new one after `quantize` and "
                f"`enable_lora`. Received: {len(self._model.weights)} weights, "
                f"{self._num_weights} before"
            )
        prompts = check_prompts(prompts, self._model.backbone.vocabulary_size)
        check_integer("max_tokens", max_tokens, 0)
        check_integer("seed", seed, 0, np.iinfo(np.int32).max - len(prompts))
        seeds = row_seeds(seed, len(prompts))
        if self._model.backbone.remembers:
            tokens = self._with_memory(prompts, max_tokens, seeds)
        else:
            tokens = self._with_window(prompts, max_tokens, seeds)
        return self._checked_tokens(tokens)

    def _checked_tokens(self, tokens):
        """Yields tokens, and raises an error at the id -1."""
        for position, token in enumerate(tokens):
            if token.min() < 0:
                row = token.argmin()
                raise FloatingPointError(
                    f"Token {position} after the prompt of row {row} cannot be "
                    "drawn, because the model returned NaN. Check that its "
                    "weights are finite."
                )
            yield token

    def replica_step(self, num_rows=1):
        """Returns the function that generates one token per row.

        Public so that `--compile_only` can lower it.

        Args:
            num_rows: Integer `B`.

        Returns:
            A pair of the function and a tuple of example arguments.
        """
        rows = np.zeros((num_rows, 1), "int32")
        if not self._model.backbone.remembers:
            ids = tf.repeat(rows, self._window.length, axis=1)
            return self._window.predict, (ids,)
        step = self._make_step(num_rows)
        seeds, position = row_seeds(0, num_rows), tf.constant(0)
        return step, (
            tf.constant(rows[:, 0]),
            seeds,
            position,
            self._seen(rows),
        )

    def _make_step(self, num_rows):
        settings = (self._model, self._sampler, num_rows, self._memory_length)
        if self._weights is None:
            return Step(*settings)
        return _OpenVinoStep(*settings, self._weights)

    def _with_memory(self, prompts, max_tokens, seeds):
        """Yields tokens from a model with memory."""
        # Taken out, so that an iterator started meanwhile creates its own step
        # and memory.
        step, self._step = self._step, None
        if step is None or step.num_rows != len(prompts):
            step = self._make_step(len(prompts))
        try:
            # The first step reads the last token of each prompt.
            step.begin(prompts)
            token = tf.constant([prompt[-1] for prompt in prompts])
            seen = self._seen(prompts)
            for position in range(max_tokens):
                token, seen = step(token, seeds, tf.constant(position), seen)
                yield token.numpy()
        finally:
            self._step = step

    def _with_window(self, texts, max_tokens, seeds):
        """Yields tokens from a model without memory."""
        for position in range(max_tokens):
            log_probs = self._window.log_probs(texts)
            seen = self._seen(texts)
            token = self._sampler(log_probs, fold_in(seeds, position), seen)
            token = token.numpy()
            texts = [
                np.append(text, row)
                for text, row in zip(texts, token, strict=True)
            ]
            yield token

    def _seen(self, texts):
        """Returns the tokens to penalize `(B, V)`, or None if none are."""
        if self._sampler.repetition_penalty is None:
            return None
        vocabulary_size = self._model.backbone.vocabulary_size
        seen = np.zeros((len(texts), vocabulary_size), bool)
        for row, text in zip(seen, texts, strict=True):
            row[text] = True
        return tf.constant(seen)


def row_seeds(seed, num_rows):
    """Returns one seed per row, uint32 `(B,)`; row r depends on `seed + r`."""
    rows = tf.cast(seed + tf.range(num_rows), tf.uint32)
    return fold_in(rows, 0)


class Step(TokenReader):
    """Reads one token per row and draws the next one."""

    def __init__(self, model, sampler, num_rows, memory_length):
        super().__init__(model, num_rows, memory_length)
        self._sampler = sampler
        self._draw = self._reader.compile(self._read_and_draw)

    @tf.function(autograph=False)
    def __call__(self, token, seeds, position, seen):
        token, entries = self._draw(token, seeds, position, seen)
        self._remember(entries)
        return token, _add_seen(seen, token)

    def _read_and_draw(self, token, seeds, position, seen):
        hidden, entries = self._reader.read(token[:, None])
        token = self._model.softmax.sample(
            hidden[:, 0], self._sampler, fold_in(seeds, position), seen
        )
        return token, entries


class _OpenVinoStep(TokenReader):
    """Reads one token per row by OpenVINO, after prompts by TensorFlow."""

    def __init__(self, model, sampler, num_rows, memory_length, weights):
        super().__init__(model, num_rows, memory_length)
        self._sampler = sampler
        self._make_decoder = functools.partial(
            OpenVinoDecoder, model, num_rows, memory_length, weights
        )
        self._decoder = self._sums = None
        self._draw = tf.function(
            self._draw_token, jit_compile=True, autograph=False
        )

    def begin(self, prompts):
        super().begin(prompts)
        sums = _checksums([w.value for w in self._model.weights]).numpy()
        if not np.array_equal(sums, self._sums):
            # The graph has the values of the weights.
            self._decoder, self._sums = self._make_decoder(), sums
        self._decoder.begin(self._reader.memory())

    def __call__(self, token, seeds, position, seen):
        log_probs = self._decoder(token.numpy())
        return self._draw(tf.constant(log_probs), seeds, position, seen)

    def _draw_token(self, log_probs, seeds, position, seen):
        token = self._sampler(log_probs, fold_in(seeds, position), seen)
        return token, _add_seen(seen, token)


def _add_seen(seen, token):
    """Adds the tokens `(B,)` to those seen `(B, V)`, unless that is None."""
    if seen is None:
        return None
    return seen | tf.one_hot(token, seen.shape[1], True, False)


@tf.function(autograph=False, jit_compile=True)
def _checksums(weights):
    """Returns a hash of each float32 tensor's values and their order."""

    def checksum(x):
        # The last steps of MurmurHash3, since a sum of the bits themselves
        # would not notice a new sign or scale.
        h = tf.reshape(tf.bitcast(x, tf.uint32), [-1])
        places = tf.cast(tf.range(tf.size(h)), tf.uint32)
        h = tf.bitwise.bitwise_xor(h, places * np.uint32(0x9E3779B9))
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            shifted = tf.bitwise.right_shift(h, np.uint32(shift))
            h = tf.bitwise.bitwise_xor(h, shifted) * np.uint32(factor)
        return tf.reduce_sum(h)

    return tf.stack([checksum(x) for x in weights])
