"""Text generation, one token at a time: random draws and beam search.

More letters: `K` beams of each prompt.
"""

import contextlib
import itertools

import numpy as np
from keras import ops
from keras import tree

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.compilation import compile_function
from txl_keras.extending import registered
from txl_keras.layers.compute.dropout import SEED_DTYPE
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.models.generation.prompts import Continuation
from txl_keras.models.generation.prompts import heals
from txl_keras.models.generation.token_reader import PROMPT_SEGMENT
from txl_keras.models.generation.token_reader import TokenReader
from txl_keras.models.generation.token_reader import WindowReader


class Readers:
    """Keeps readers of tokens for later calls."""

    # Each has a memory of its own, so only those of the latest calls are kept:
    # engines' by number of rows, and otherwise one, for any number.
    _most = 3

    def __init__(
        self,
        model,
        memory_length=None,
        engine="tensorflow",
        engine_options=(),
        answer=None,
    ):
        self._model = model
        self._memory_length = generation_memory_length(
            model.backbone, memory_length
        )
        engines = registered("engine")
        check_one_of("engine", engine, ("tensorflow", *engines))
        if engine not in engines and engine_options:
            raise TypeError(
                f"generate() has no arguments {dict(engine_options)} with "
                f"engine={engine!r}"
            )
        self.has_engine = engine in engines
        make = engines.get(engine)
        if not self.has_engine:
            make = TokenReader if model.backbone.remembers else WindowReader
            engine_options = {"answer": answer}
        self._make_reader = lambda num_rows: make(
            model, num_rows, self._memory_length, **dict(engine_options)
        )
        self._kept = {}  # by number of rows or `None`, latest last

    def initial_memory(self, memory, num_rows):
        """Returns the initial `Memory`; checks a given one."""
        backbone, length = self._model.backbone, self._memory_length
        expected = backbone.past_length(length)
        if memory is None:
            return backbone.initial_memory(num_rows, length)
        memory = backbone.check_memory(memory, num_rows)
        if memory.length != expected:
            raise ValueError(
                f"`memory` must have {expected} entries per row with "
                f"memory_length={length}. Pass the `memory_length` of the call "
                f"that returned it. Received: {memory.length} entries"
            )
        return memory

    def memory_after(self, texts, memory):
        """Returns the `Memory` after reading each row's ids from `memory`."""
        found = []
        # One by one: they differ in length, and an LSTM takes no padding.
        for i, ids in enumerate(texts):
            row = tree.map_structure(lambda x, i=i: x[i : i + 1], memory)
            for start in range(0, len(ids), PROMPT_SEGMENT):
                part = ids[start : start + PROMPT_SEGMENT]
                _, row = self._model.backbone(part[None], memory=row)
            found.append(row)
        return tree.map_structure(lambda *x: ops.concatenate(x, axis=0), *found)

    @contextlib.contextmanager
    def reading(self, prompts, memory):
        """Lends a reader that has read all tokens of prompts but the last."""
        # The reader is removed meanwhile, so that another iterator that starts
        # creates its own reader and memory.
        num_rows = len(prompts) if self.has_engine else None
        reader = self._kept.pop(num_rows, None)
        if reader is None:
            reader = self._make_reader(num_rows)
        try:
            reader.begin(prompts, memory)
            yield reader
        finally:
            self._kept[num_rows] = reader
            if len(self._kept) > self._most:
                self._kept.pop(next(iter(self._kept)), None)


class Generator:
    """Continues prompts with tokens that a `Sampler` draws."""

    def __init__(self, model, readers, sampler, with_log_probs=False):
        self._model = model
        self._readers = readers
        self._sampler = sampler
        self._with_log_probs = with_log_probs
        draw = self._draw_from if readers.has_engine else self._answer
        self._draw = compile_function(draw, model.weights, jit_compile=True)

    def __call__(self, rows, seed=0, memory=None):
        """Adds tokens to each `Continuation`, and yields what each returns."""
        prompts = [row.read for row in rows]
        seeds, seen = row_seeds(seed, len(rows)), self._seen(prompts)
        allowed = self._allowed(rows)
        # The first step reads the last token of each prompt.
        token = _integers([prompt[-1] for prompt in prompts])
        with self._readers.reading(prompts, memory) as reader:
            step = reader.then(self._draw)
            for position in itertools.count():
                if all(row.is_ended for row in rows):
                    return
                token, log_probs = step(
                    token, seeds, _integers(position), seen, allowed
                )
                if seen is not None:
                    size = seen.shape[1]
                    seen = seen | ops.one_hot(token, size, dtype="bool")
                if position == 0 and allowed is not None:
                    allowed = ops.ones_like(allowed)
                found = ops.convert_to_numpy(token)
                if found.min() < 0:
                    raise FloatingPointError(
                        f"Token {position} after the prompt of row "
                        f"{found.argmin()} cannot be drawn, because the model "
                        "returned NaN. Check that its weights are finite."
                    )
                values = found
                if self._with_log_probs:
                    values = ops.convert_to_numpy(log_probs)
                yield [*map(Continuation.add, rows, found, values)]

    def _answer(self, hidden, seeds, position, seen, allowed):
        """Returns the next tokens `(B,)` and maybe their log-probabilities."""
        softmax = self._model.softmax
        if allowed is not None:
            log_probs = softmax.log_probs(hidden)
            return self._draw_from(log_probs, seeds, position, seen, allowed)
        token = softmax.sample(
            hidden, self._sampler, fold_in(seeds, position), seen
        )
        if not self._with_log_probs:
            return token, None
        return token, _values_at(token, softmax.log_probs(hidden))

    def _draw_from(self, log_probs, seeds, position, seen, allowed):
        seeds = fold_in(seeds, position)
        token = self._sampler(only(allowed, log_probs), seeds, seen)
        return token, _values_at(token, log_probs)

    def _allowed(self, rows):
        """Returns a mask `(B, V)` of first tokens, or None if all may be."""
        # Not by row, because the ways to draw differ with `cutoffs`.
        if not (rows[0].stream and heals(self._model.tokenizer)):
            return None
        begin_with = self._model.tokenizer.ids_that_begin_with
        return self._mask([begin_with(row.known) for row in rows])

    def _seen(self, texts):
        """Returns a mask `(B, V)` of tokens to penalize, or None."""
        if self._sampler.repetition_penalty is None:
            return None
        return self._mask(texts)

    def _mask(self, rows):
        """Returns a mask `(B, V)` that is true at each row's ids."""
        shape = len(rows), self._model.backbone.vocabulary_size
        mask = np.zeros(shape, bool)
        for row, ids in zip(mask, rows, strict=True):
            row[ids] = True
        return ops.convert_to_tensor(mask)


class BeamSearch(Generator):
    """Continues prompts with likely texts, K beams at a time."""

    # Every beam is a row with its own memory, which is copied where a beam
    # splits. `BeamSampler` defines the score. Nothing is drawn.

    def __init__(self, model, *args):
        super().__init__(model, *args)
        self._rank = compile_function(self._rank_beams, reduce_retracing=True)

    def __call__(self, rows, seed=0, memory=None):
        """Yields once: the best text or ids for each row."""
        count = self._sampler.num_beams
        beams = [row.copy() for row in rows for _ in range(count)]
        prompts, allowed = [beam.read for beam in beams], self._allowed(beams)
        tokens = np.array([prompt[-1] for prompt in prompts])
        # A prompt's beams are equal at first, so all but one are ruled out.
        scores = np.full((len(rows), count), -np.inf, "float32")
        scores[:, 0] = 0
        first = np.arange(len(rows))[:, None] * count
        memory = repeat_rows(memory, count)
        with self._readers.reading(prompts, memory) as reader:
            while True:
                ended = np.reshape([b.is_ended for b in beams], scores.shape)
                # More tokens never raise a sum, so if the best text has ended,
                # it remains the best.
                if ended[:, 0].all():
                    break
                log_probs = reader(_integers(tokens.ravel()))
                log_probs, allowed = only(allowed, log_probs), None
                before = map(ops.convert_to_tensor, (scores, ended))
                found = self._rank(log_probs, *before)
                parents, tokens, scores = map(ops.convert_to_numpy, found)
                if not (scores < np.inf).all():
                    raise FloatingPointError(
                        "The text cannot be continued, because the model "
                        "returned NaN. Check that its weights are finite."
                    )
                parents = (first + parents).ravel()
                if (parents != np.arange(len(beams))).any():
                    reader.reorder(parents)
                beams = [beams[parent].copy() for parent in parents]
                for beam, token in zip(beams, tokens.ravel(), strict=True):
                    beam.add(token)
        rows[:] = beams[::count]
        yield [row.result() for row in rows]

    def _rank_beams(self, log_probs, scores, ended):
        """Returns parents, tokens and scores `(B, K)` of the next beams."""
        count = self._sampler.num_beams
        vocabulary_size = log_probs.shape[1]
        log_probs = ops.reshape(log_probs, (-1, count, vocabulary_size))
        # The only continuation of an ended text is itself; its token is unused.
        is_first = ops.arange(vocabulary_size) == 0
        itself = ops.where(is_first, 0.0, -float("inf"))
        log_probs = ops.where(ended[..., None], itself, log_probs)
        sums = ops.reshape(
            scores[..., None] + log_probs, (-1, count * vocabulary_size)
        )
        # NaN sorts first.
        sums = ops.where(sums < float("inf"), sums, float("inf"))
        scores, places = ops.top_k(sums, count)
        return places // vocabulary_size, places % vocabulary_size, scores


def _integers(values):
    return ops.convert_to_tensor(np.asarray(values), "int32")


def repeat_rows(memory, count):
    """Repeats each row of a memory; returns None for None."""
    return tree.map_structure(
        lambda state: None if state is None else ops.repeat(state, count, 0),
        memory,
    )


def only(allowed, log_probs):
    """Rules out tokens that are not allowed."""
    if allowed is None:
        return log_probs
    return ops.where(allowed, log_probs, -float("inf"))


def _values_at(token, log_probs):
    # The caller checks for -1, which stands for NaN.
    token = ops.maximum(token, 0)[:, None]
    return ops.take_along_axis(log_probs, token, axis=1)[:, 0]


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
    rows = ops.cast(seed + ops.arange(num_rows), SEED_DTYPE)
    return fold_in(rows, 0)


def as_they_are(hidden):
    """Returns the hidden states, for readers of all samplers."""
    return hidden
