"""Autoregressive text generation.

Letters: `B` batch, `P` prompt, `T` segment, `M` memory, `V` vocabulary.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import shown
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.models.generation.openvino_decoder import OpenVinoDecoder
from txl_keras.models.generation.openvino_decoder import check_engine
from txl_keras.models.generation.token_reader import TokenReader
from txl_keras.models.generation.token_reader import check_prompts
from txl_keras.models.generation.token_reader import token_reader
from txl_keras.samplers.sampler import Sampler


class Generator:
    """Generates text in constant time and space per token.

    Keys, values and positions are projected only once (see `SegmentReader`).
    Prompts may be longer than memory; they are read in segments of 128 tokens.

    Args:
        model: `TransformerXLCausalLM`.
        sampler: `Sampler` whose parameters are numbers; by default one that
            draws from the unchanged distribution of the model.
        memory_length: Optional integer `M`; by default the model's own, or its
            number of positions. A model with neither needs it. A model with
            absolute positions (see `attention_type`) has no memory:
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
        self._memory_length = generation_memory_length(
            model.backbone, memory_length
        )
        check_engine(engine, weights, model, self._memory_length)
        self._weights = None if engine == "tensorflow" else weights
        self._reader = None
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
        return self._tokens(prompts, max_tokens, row_seeds(seed, len(prompts)))

    def replica_step(self, num_rows=1):
        """Returns the function that generates one token per row.

        Public so that `--compile_only` can lower it.

        Args:
            num_rows: Integer `B`.

        Returns:
            A pair of the function and a tuple of example arguments.
        """
        rows = np.zeros((num_rows, 1), "int32")
        reader = self._make_reader(num_rows)
        if not self._model.backbone.remembers:
            return reader.predict, (tf.repeat(rows, reader.length, axis=1),)
        seeds, position = row_seeds(0, num_rows), tf.constant(0)
        token = tf.constant(rows[:, 0])
        return reader, (token, seeds, position, self._seen(rows))

    def _make_reader(self, num_rows):
        settings = (self._model, num_rows, self._memory_length, self._sampler)
        if self._weights is None:
            return token_reader(*settings)
        return _OpenVinoReader(*settings, self._weights)

    def _tokens(self, prompts, max_tokens, seeds):
        """Yields the tokens of a call."""
        # Taken out, so that an iterator started meanwhile creates its own
        # reader and memory.
        reader, self._reader = self._reader, None
        if reader is None or reader.num_rows != len(prompts):
            reader = self._make_reader(len(prompts))
        try:
            # The first step reads the last token of each prompt.
            reader.begin(prompts)
            token = tf.constant([prompt[-1] for prompt in prompts])
            seen = self._seen(prompts)
            for position in range(max_tokens):
                token = reader(token, seeds, tf.constant(position), seen)
                if seen is not None:
                    seen |= tf.one_hot(token, seen.shape[1], True, False)
                found = token.numpy()
                if found.min() < 0:
                    raise FloatingPointError(
                        f"Token {position} after the prompt of row "
                        f"{found.argmin()} cannot be drawn, because the model "
                        "returned NaN. Check that its weights are finite."
                    )
                yield found
        finally:
            self._reader = reader

    def _seen(self, texts):
        """Returns the tokens to penalize `(B, V)`, or None if none are."""
        if self._sampler.repetition_penalty is None:
            return None
        vocabulary_size = self._model.backbone.vocabulary_size
        seen = np.zeros((len(texts), vocabulary_size), bool)
        for row, text in zip(seen, texts, strict=True):
            row[text] = True
        return tf.constant(seen)


def generation_memory_length(backbone, memory_length):
    """Returns the memory length for generating, by default the model's own."""
    if memory_length is None:
        # Absolute positions have no memory: the last tokens are read again.
        memory_length = backbone.memory_length or backbone.max_segment_length
        if not memory_length:
            raise ValueError(
                "`memory_length` must be given for a model without memory, "
                "where each token would attend to itself only. Pass the "
                "segment length of training. Received: memory_length=None"
            )
    check_integer(
        "memory_length", memory_length, 0, backbone.max_segment_length
    )
    if backbone.remembers:
        backbone.check_remembers(memory_length)
    return memory_length


def row_seeds(seed, num_rows):
    """Returns one seed per row, uint32 `(B,)`; row r depends on `seed + r`."""
    rows = tf.cast(seed + tf.range(num_rows), tf.uint32)
    return fold_in(rows, 0)


class _OpenVinoReader(TokenReader):
    """Reads one token per row by OpenVINO, after prompts by TensorFlow."""

    def __init__(self, model, num_rows, memory_length, sampler, weights):
        super().__init__(model, num_rows, memory_length, sampler)
        self._settings = model, num_rows, memory_length, weights
        self._decoder = self._hashes = None
        self._draw = tf.function(
            lambda log_probs, seeds, position, seen: sampler(
                log_probs, fold_in(seeds, position), seen
            ),
            jit_compile=True,
            autograph=False,
        )

    def begin(self, prompts):
        super().begin(prompts)
        hashes = [
            tf.fingerprint(tf.reshape(weight.value, (1, -1))).numpy().tobytes()
            for weight in self._model.weights
        ]
        if hashes != self._hashes:
            # The graph has the values of the weights.
            self._decoder = OpenVinoDecoder(*self._settings)
            self._hashes = hashes
        self._decoder.begin(self._reader.memory())

    def __call__(self, token, *draw):
        return self._draw(tf.constant(self._decoder(token.numpy())), *draw)
