"""Writes samples and the surprise page while a model trains."""

import dataclasses
import itertools
import time

import numpy as np
import tensorflow as tf
from absl import logging

from txl_keras.data.corpora.files import write_text
from txl_keras.extending import registered
from txl_keras.samplers.sampler import Sampler

# Share of a run's time. The first sample takes seconds, because it compiles.
_SHARE = 0.02
_SHOWN_TOKENS = 100  # of a sample in training
_PASSAGES = 64


def legible_passage(tokens, tokenizer, length):
    """Returns up to `length` tokens that people can read and judge."""
    # The start of a text may be a table of numbers. Of some passages this is
    # the one with the largest share of letters and spaces.
    last = max(0, len(tokens) - length)
    starts = np.linspace(0, last, _PASSAGES).astype(int).tolist()

    def share(start):
        text = tokenizer.decode(tokens[start : start + length])
        count = sum(c.isalpha() or c == " " for c in text)
        return count / max(1, len(text))

    start = max(starts, key=share)
    passage = tokens[start : start + length]
    # Ends with a line in its second half, if one ends there.
    for end in range(len(passage), length // 2, -1):
        if tokenizer.decode(passage[:end]).endswith("\n"):
            return passage[:end]
    return passage


@dataclasses.dataclass
class Samples:
    """Writes text and the surprise page with the weights of a run."""

    # Writing does not change the run: samples and pages have their own memory,
    # and draw by seed and step. With `max_tokens` 0 nothing is shown during
    # training, and no page is written. `loop` is the run's `TrainingLoop`.

    tokenizer: object
    prompt: np.ndarray  # token ids `(P,)` that the model continues
    text: np.ndarray  # token ids of the page
    title: str
    segment_length: int
    max_tokens: int
    seed: int

    def __post_init__(self):
        self._are_shown = self.max_tokens > 0
        self._copy = self._reader = None
        self._start, self._seconds = time.monotonic(), 0.0

    def show(self, loop, step):
        """Shows a sample and updates the page, unless that took too long."""
        start = time.monotonic()
        is_due = self._seconds <= _SHARE * (start - self._start)
        # The last step gets a sample of the best weights instead.
        is_end = step == loop.max_steps
        if is_end or not is_due or not self._are_shown:
            return
        try:
            most = min(self.max_tokens, _SHOWN_TOKENS)
            tokens = itertools.takewhile(
                lambda _: loop.stop.signal is None,
                self._tokens(loop, most, self.seed + step),
            )
            sample = self.tokenizer.decode(list(tokens))
            if loop.stop.signal is not None:
                return
            loop.progress.sample(step, sample)
            loop.tensorboard.write_text("sample", sample, step)
            self._write_page(loop, step)
        except tf.errors.ResourceExhaustedError as error:
            self._are_shown = False
            logging.warning(
                "Memory is too small for samples. They are left out from now "
                "on, as with --max_sample_tokens=0: %s",
                error.message,
            )
        self._seconds += time.monotonic() - start

    def finish(self, loop, step):
        """Writes sample.txt and the page with the weights of a step."""
        tokens = self._tokens(loop, self.max_tokens, self.seed)
        sample = self.tokenizer.decode(list(tokens))
        write_text(sample, loop.workdir.file("sample.txt"))
        loop.tensorboard.write_text("sample", sample, step)
        self._write_page(loop, step)

    def _tokens(self, loop, max_tokens, seed):
        model = self._current_model(loop)
        for (token,) in model.generate(
            self.prompt,
            max_new_tokens=max_tokens,
            sampler=Sampler(temperature=0.8, top_p=0.95),
            seed=seed % (np.iinfo(np.int32).max - 1),
            stream=True,
            memory_length=loop.workdir.generation_memory_length(model.backbone),
        ):
            yield int(token)

    def _write_page(self, loop, step):
        """Writes surprise.html, unless the text is too short or not wanted."""
        # TensorBoard cannot show HTML, so it gets the mean bits.
        make_reader = registered("page").get("surprise")
        if not (make_reader and self._are_shown and len(self.text) > 1):
            return
        model = self._current_model(loop)
        if self._reader is None:
            self._reader = make_reader(
                model, self.tokenizer, self.segment_length
            )
        data = self._reader.read(self.text)
        page = self._reader.page(f"{self.title}, step {step}", data)
        write_text(page, loop.workdir.file("surprise.html"))
        scored = data["tokens"][1:]
        means = {
            "with_memory": np.mean([x["bits"] for x in scored]).item(),
            "without_memory": np.mean([x["cold"] for x in scored]).item(),
        }
        loop.tensorboard.write({"step": step, "surprise": means})

    def _current_model(self, loop):
        """Returns the model, or a copy on one device if it is on several."""
        model, strategy = loop.trainer.model, loop.trainer.strategy
        is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        if not is_tpu and strategy.num_replicas_in_sync == 1:
            return model
        if self._copy is None:
            self._copy = type(model).from_config(model.get_config())
        self._copy.set_weights(model.get_weights())
        return self._copy
