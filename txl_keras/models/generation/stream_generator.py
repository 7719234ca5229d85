"""Generation of steps of several token streams.

Letters: `B` batch, `P` prompt, `D` hidden size, `F` streams.
"""

from txl_keras.models.generation.generator import Generator
from txl_keras.models.generation.generator import Step


class StreamGenerator(Generator):
    """Generates steps, int32 `(B, F)`, where `Generator` generates tokens."""

    def __init__(self, model, stream_samplers, memory_length):
        super().__init__(model, memory_length=memory_length)
        self._samplers = stream_samplers

    def _check_prompts(self, prompts):
        return prompts  # checked by the model

    def _make_step(self, num_rows):
        return _StreamStep(
            self._model, self._samplers, num_rows, self._memory_length
        )


class _StreamStep(Step):
    """Reads one step per row and draws the next one."""

    def __init__(self, model, stream_samplers, num_rows, memory_length):
        self.token_shape = (len(stream_samplers),)
        super().__init__(model, stream_samplers, num_rows, memory_length)

    def embed(self, ids):
        return self._model.embedding(ids)

    def sample(self, hidden, seeds, seen):
        return self._model.sample(hidden, self._sampler, seeds)
