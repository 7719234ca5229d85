"""Lets a model write.

Letters: `B` batch, `M` memory, `V` vocabulary.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.layers.decoder_block import ABSOLUTE_TYPES

_PROMPT_SEGMENT = 128


class Generator:
    """Writes token after token; the memory bounds time and space a token.

    Args:
        model: `TransformerXLCausalLM`.
        sampler: `Sampler`.
        memory_length: Optional integer `M`; by default the model's own. Where
            positions are absolute (see `attention_type`) there is no memory:
            the last M tokens are read again for every token.

    Example:

    ```python
    import numpy as np
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.serving import Generator, Sampler

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    write = Generator(model, Sampler(top_k=10), memory_length=32)
    ids = [token for token in write(np.array([[5, 6, 7]]), max_tokens=4)]
    ```
    """

    def __init__(self, model, sampler, memory_length=None):
        self._model = model
        self._sampler = sampler
        self._memory_length = memory_length

    def __call__(self, prompt, max_tokens, seed=0):
        """Yields the tokens after a prompt.

        Args:
            prompt: Integer array of shape `(B, P)`, `P >= 1`.
            max_tokens: Integer, how many tokens to write.
            seed: Integer. The same seed writes the same text.

        Yields:
            int32 array of shape `(B,)`, `max_tokens` times.

        Raises:
            ValueError: If the prompt is empty or has ids that are not in the
                vocabulary, or `max_tokens` is negative.
        """
        prompt = self._checked(prompt, max_tokens)
        if self._model.backbone.attention_type in ABSOLUTE_TYPES:
            yield from self._read_again(prompt, max_tokens, seed)
            return
        memory = self._model.initial_memory(
            prompt.shape[0], self._memory_length
        )
        # All of the prompt but its last token, which the first step reads.
        for start in range(0, prompt.shape[1] - 1, _PROMPT_SEGMENT):
            end = min(start + _PROMPT_SEGMENT, prompt.shape[1] - 1)
            memory = self._read(prompt[:, start:end], memory)
        token = tf.constant(prompt[:, -1])
        for position in range(max_tokens):
            token, memory = self._step(
                token, memory, tf.constant([seed, position])
            )
            yield token.numpy()

    def _read_again(self, text, max_tokens, seed):
        """Yields as `__call__` does, without a memory."""
        no_memory = self._model.initial_memory(text.shape[0], 0)
        window = max(1, self._memory_length or 0)
        for position in range(max_tokens):
            log_probs = self._predict(text[:, -window:], no_memory)
            token = self._sampler(log_probs, tf.constant([seed, position]))
            text = np.concatenate([text, token[:, None]], axis=1)
            yield token.numpy()

    def _checked(self, prompt, max_tokens):
        prompt = np.asarray(prompt, "int32")
        vocabulary_size = self._model.backbone.vocabulary_size
        if prompt.ndim != 2 or prompt.size == 0:
            raise ValueError(
                "`prompt` must have shape (B, P) and at least one token. "
                f"Received: prompt.shape={prompt.shape}"
            )
        if prompt.min() < 0 or prompt.max() >= vocabulary_size:
            raise ValueError(
                f"`prompt` must hold ids in [0, {vocabulary_size}). Received "
                f"ids from {prompt.min()} to {prompt.max()}."
            )
        check_integer("max_tokens", max_tokens, 0)
        return prompt

    @tf.function(reduce_retracing=True)
    def _read(self, ids, memory):
        return self._model.backbone(ids, memory=memory)[1]

    @tf.function(reduce_retracing=True)
    def _predict(self, ids, memory):
        return self._model.log_probs(ids, memory)[0][:, -1]

    @tf.function(jit_compile=True)
    def _step(self, token, memory, seed):
        log_probs, memory = self._model.log_probs(token[:, None], memory)
        return self._sampler(log_probs[:, -1], seed), memory
