"""Shows what the model of a run writes, and what surprises it."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from txl_keras.data.corpora.files import write_text
from txl_keras.evaluation.surprise import SurpriseReader
from txl_keras.evaluation.surprise import fill_page
from txl_keras.models import TransformerXLCausalLM
from txl_keras.samplers.sampler import Sampler
from txl_keras.training.stopping import StopRequest
from txl_keras.workdir import Workdir

# Of the time of a run. A sample compiles and costs seconds at first.
_SHARE = 0.02
_SHOWN_TOKENS = 100  # of a sample in training


@dataclasses.dataclass
class Samples:
    """Writes text and the surprise page with the weights of a run."""

    # Neither changes the run: both have a memory of their own, and draw by seed
    # and step. With `max_tokens` 0 nothing is shown in training, and there is
    # no page.

    model: TransformerXLCausalLM
    strategy: tf.distribute.Strategy
    tokenizer: object
    workdir: Workdir
    stop: StopRequest
    prompt: Callable  # returns the token ids `(P,)` that the model continues
    text: np.ndarray  # token ids of the page
    title: str
    segment_length: int
    max_tokens: int
    seed: int

    def __post_init__(self):
        self._are_shown = self.max_tokens > 0
        self.prompt = functools.cache(self.prompt)
        self._copy = self._reader = None
        self._start, self._seconds = time.monotonic(), 0.0

    def show(self, step, progress, tensorboard):
        """Shows a sample and refreshes the page, unless that took too long."""
        start = time.monotonic()
        is_due = self._seconds <= _SHARE * (start - self._start)
        if not is_due or not self._are_shown:
            return
        try:
            most = min(self.max_tokens, _SHOWN_TOKENS)
            tokens = itertools.takewhile(
                lambda _: self.stop.signal is None,
                self._tokens(most, self.seed + step),
            )
            sample = self.tokenizer.decode(list(tokens))
            if self.stop.signal is not None:
                return
            progress.sample(step, sample)
            tensorboard.write_text("sample", sample, step)
            self.write_page(step, tensorboard)
        except tf.errors.ResourceExhaustedError as error:
            self._are_shown = False
            logging.warning(
                "Memory is too small for samples, which are left out from now "
                "on, as with --max_sample_tokens=0: %s",
                error.message,
            )
        self._seconds += time.monotonic() - start

    def write(self):
        """Returns a continuation of the prompt."""
        tokens = self._tokens(self.max_tokens, self.seed)
        return self.tokenizer.decode(list(tokens))

    def _tokens(self, max_tokens, seed):
        model = self._current_model()
        for (token,) in model.generate(
            self.prompt(),
            max_new_tokens=max_tokens,
            sampler=Sampler(temperature=0.8, top_p=0.95),
            seed=seed % (np.iinfo(np.int32).max - 1),
            stream=True,
            memory_length=self.workdir.generation_memory_length(model.backbone),
        ):
            yield int(token)

    def write_page(self, step, tensorboard):
        """Writes surprise.html, unless the text is too short or not wanted."""
        # TensorBoard, which shows no HTML, gets the mean bits.
        if not self._are_shown or len(self.text) < 2:
            return
        model = self._current_model()
        if self._reader is None:
            self._reader = SurpriseReader(
                model,
                self.tokenizer,
                self.segment_length,
                model.backbone.memory_length,
            )
        data = self._reader.read(np.asarray(self.text, np.int32))
        page = fill_page(f"{self.title}, step {step}", data)
        write_text(page, self.workdir.file("surprise.html"))
        scored = data["tokens"][1:]
        means = {
            "with_memory": np.mean([x["bits"] for x in scored]).item(),
            "without_memory": np.mean([x["cold"] for x in scored]).item(),
        }
        tensorboard.write({"step": step, "surprise": means})

    def _current_model(self):
        """Returns the model, or a copy on one device if it is on several."""
        is_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        if not is_tpu and self.strategy.num_replicas_in_sync == 1:
            return self.model
        if self._copy is None:
            config = self.model.get_config()
            self._copy = type(self.model).from_config(config)
        self._copy.set_weights(self.model.get_weights())
        return self._copy
