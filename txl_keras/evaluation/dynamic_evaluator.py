"""Dynamic evaluation: a model goes on learning from the text that it scores.

Krause et al. (2018), "Dynamic Evaluation of Neural Sequence Models", and Krause
et al. (2019), "Dynamic Evaluation of Transformer Language Models".

Letters: `B` rows, `T` segment, `M` memory, `P` predictions of a text, which has
`P + 1` tokens.
"""

import json
import time
from collections.abc import Callable
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras.optimizers.schedules import LearningRateSchedule

from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import shown
from txl_keras.data.segments import Segments
from txl_keras.evaluation import evaluator
from txl_keras.evaluation.backup import Backup
from txl_keras.evaluation.backup import arrays_hash
from txl_keras.evaluation.backup import weights_hash
from txl_keras.layers.memory.memory_stack import Memory
from txl_keras.training import checkpointing
from txl_keras.training.compilation import compile_layers
from txl_keras.training.stopping import StopRequest
from txl_keras.types import PathLike
from txl_keras.weights import weights_by_name

_SECONDS_BETWEEN_BACKUPS = 300
# Entries of a batch that its scores depend on.
_SCORED = ("inputs", "targets", "weights", "reset")
# Segments at the end of a text that the original weights score, too, after as
# many that fill their memory.
_END_SEGMENTS = 10
# Times the loss of the original weights. Rates that help lower that of the end;
# rates that ruin the weights at least double it. Less may be due to the text.
_ASTRAY = 1.25


class DynamicEvaluator:
    """Scores a text while the weights follow it, segment by segment.

    Each segment is first scored with the weights as they are; these are the
    scores that count. Then one gradient step on the loss of the segment, the
    mean over its B T places, changes the weights, and the text goes on. With
    `g` the gradient, `w` the weights, `w0` those at the start and `MS` the mean
    square of the gradient on training text, all per element:

        SGD   w <- w - learning_rate g
        RMS   w <- w - learning_rate g / (sqrt(MS) + epsilon)
                     + min(decay sqrt(MS), 1) (w0 - w)

    The decay pulls the weights that matter most back to where they were. The
    minimum keeps a step from overshooting `w0`: Krause et al. (2018) have it,
    the code of Krause et al. (2019) has not (`clip_decay=False`). The former
    also divides `decay` by a mean of sqrt(MS): over weight tensors, of the mean
    of each. A segment with fewer targets takes a proportionally smaller step.
    Memory is what the model computed while it scored: it is not computed again
    with the new weights.

    Only trainable weights change: those of LoRA after `enable_lora`, and none
    of a layer with `layer.trainable = False`. After `evaluate` the model has
    its original weights again; it warns if these score the end of the text far
    better than the changed ones. Scores depend on the segment length, and with
    more than one row also on the batch size, because all rows share the
    weights; published results are for one row.

    Args:
        model: `TransformerXLCausalLM`, in float32 or bfloat16.
        learning_rate: Float, at least 0; with 0 the scores are those of the
            unchanged model.
        mean_square: Optional dictionary of the mean square of the gradient by
            the names of weights, as `collect_mean_square` returns. Chooses the
            RMS rule; by default SGD.
        decay: Float, at least 0, for the RMS rule.
        epsilon: Float above 0, for the RMS rule.
        clip_decay: Boolean, whether the pull back is at most 1.
        batch_size: Integer `B`, the number of streams of the text.
        segment_length: Integer `T`. Collect `mean_square` with the same.
        stop: Optional `StopRequest`.

    Example:

    ```python
    import numpy as np
    from txl_keras.data import Segments
    from txl_keras.evaluation import DynamicEvaluator, collect_mean_square
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    text = np.frombuffer(b"to be or not to be, that is" * 9, "uint8")
    segments = Segments(text, 1, 8, drop_remainder=False)
    mean_square = collect_mean_square(model, segments, len(segments))
    evaluator = DynamicEvaluator(
        model, 1e-3, mean_square, batch_size=1, segment_length=8
    )
    print(evaluator.evaluate(segments)["bits_per_token"])
    ```

    Reference:
        [Krause et al., 2018](https://arxiv.org/abs/1709.07432);
        [Krause et al., 2019](https://arxiv.org/abs/1904.08378).
    """

    def __init__(
        self,
        model: keras.Model,
        learning_rate: float | LearningRateSchedule,
        mean_square: dict | None = None,
        decay: float = 0.0,
        epsilon: float = 1e-5,
        clip_decay: bool = True,
        batch_size: int = 1,
        segment_length: int = 64,
        stop: StopRequest | None = None,
    ):
        check_number("learning_rate", learning_rate, 0)
        check_number("decay", decay, 0)
        check_number("epsilon", epsilon, 0, exclusive=True)
        if decay and mean_square is None:
            raise ValueError(
                "`decay` must be 0 without `mean_square`, which scales it. "
                f"Received: decay={decay}, mean_square=None"
            )
        self.learning_rate = learning_rate
        self.decay = decay
        self._epsilon = epsilon
        self._clip_decay = clip_decay
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise ValueError(
                "Dynamic evaluation must run on one replica: replicas would "
                "need weights of their own. Received: a strategy of "
                f"{strategy.num_replicas_in_sync} replicas"
            )
        if model.compute_dtype == "float16":
            raise ValueError(
                "`model` must compute in float32 or bfloat16, because small "
                "gradients are 0 in float16. Received: float16"
            )
        self._batch_size = check_integer("batch_size", batch_size, 1)
        self._length = check_integer("segment_length", segment_length, 1)
        model.backbone.check_positions(segment_length)
        self._variables = trainable_variables(model)
        self._model = model
        self._mean_square = None
        if mean_square is not None:
            self._mean_square = checked_mean_square(mean_square, model)
        self._stop = stop or StopRequest()
        self._compiled_read = compile_layers(
            self._score_and_differentiate, strategy, model, training=True
        )
        self._compiled_update = compile_layers(self._update, strategy)

    def evaluate(
        self,
        segments: Segments,
        on_progress: Callable | None = None,
        token_nll: np.ndarray | None = None,
        backup: PathLike | None = None,
    ) -> dict | None:
        """Scores all targets of a text.

        Args:
            segments: `Segments` with `drop_remainder=False`.
            on_progress: Optional function, called with the number of segments
                scored so far and their total number.
            token_nll: Optional float32 array of shape `(P + 1,)`, filled with
                the nats of every token, as by `Evaluator.evaluate`.
            backup: Optional string, a file. The state is saved there every
                five minutes and when a stop is requested. If it holds the state
                of the same evaluation, that goes on with the same result. It is
                removed at the end.

        Returns:
            The dictionary of `Evaluator.evaluate`, or `None` if a stop was
            requested.

        Raises:
            FloatingPointError: If a score or the change of a weight is not
                finite, for example at too high a learning rate.
        """
        evaluator.check_sizes(segments, self._batch_size, self._length)
        if token_nll is None:
            token_nll = np.empty(segments.num_predictions + 1, np.float32)
        evaluator.check_token_nll(token_nll, segments)
        token_nll[:] = np.nan
        start = {k: tf.identity(v) for k, v in self._variables.items()}
        if backup is not None:
            backup = Backup(backup, self._settings(segments))
        try:
            is_complete = self._follow(
                segments, start, on_progress, token_nll, backup
            )
        finally:
            for name, variable in self._variables.items():
                variable.assign(start[name])
        if not is_complete:
            return None
        self._warn_if_astray(segments, token_nll)
        if backup is not None:
            backup.remove()
        is_scored = ~np.isnan(token_nll)
        total = np.sum(token_nll, where=is_scored, dtype=np.float64)
        return evaluator.scores_of(total, is_scored.sum())

    def _follow(self, segments, start, on_progress, token_nll, backup):
        """Scores a text and changes the weights; returns false if stopped."""
        done, past = 0, None
        if backup is not None:
            done, past = self._restore(backup, token_nll)
        # Tensors, because other numbers would be traced again.
        rates = tf.unstack(tf.cast([self.learning_rate, self.decay], "float32"))
        saved = time.monotonic()
        for nll, memory, gradients in self.read(segments, done, past):
            found = nll.numpy()
            self._check_finite(done, np.isfinite(found).all())
            positions = segments.target_positions(done)
            evaluator.store_token_nll(token_nll, positions, found)
            largest = self._compiled_update(gradients, start, *rates)
            done += 1
            self._check_finite(done, np.isfinite(largest))
            if on_progress:
                on_progress(done, len(segments))
            is_stopped = bool(self._stop.variable.numpy())
            is_due = time.monotonic() - saved > _SECONDS_BETWEEN_BACKUPS
            if done == len(segments):
                break  # a stop has come too late
            if backup is not None and (is_stopped or is_due):
                backup.save(self._state(done, token_nll, memory))
                saved = time.monotonic()
            if is_stopped:
                return False
        return True

    def _warn_if_astray(self, segments, token_nll):
        """Warns if the original weights score the end of a text far better."""
        # They begin with an empty memory, which can only hide a warning.
        if not self.learning_rate:
            return
        first = max(0, len(segments) - 2 * _END_SEGMENTS)
        changed = original = 0.0
        for step, (nll, *_) in enumerate(self.read(segments, first), first):
            positions = segments.target_positions(step)
            is_scored = positions >= 0
            if step >= (first + len(segments)) // 2:
                changed += token_nll[positions[is_scored]].sum(dtype=float)
                original += nll.numpy()[is_scored].sum(dtype=float)
        if changed > _ASTRAY * original:
            logging.warning(
                "Dynamic evaluation has ruined the weights: at the end of the "
                "text the loss is %.2g times that of the original weights. "
                "`learning_rate` must be smaller (--dynamic_learning_rate). "
                "Received: learning_rate=%g, decay=%g",
                changed / original, self.learning_rate, self.decay,
            )  # fmt: skip

    def _check_finite(self, done, is_finite):
        # Otherwise the weights were not finite before.
        if not is_finite and done and self.learning_rate:
            raise FloatingPointError(
                f"Weights or scores are not finite after segment {done} of the "
                "text: `learning_rate` must be smaller. Received: "
                f"learning_rate={self.learning_rate}, decay={self.decay}"
            )

    def _update(self, gradients, start, learning_rate, decay):
        """Changes the weights; returns the largest change of one of them."""
        largest = []
        for name, variable in self._variables.items():
            change = -learning_rate * gradients[name]
            if self._mean_square is not None:
                root = tf.sqrt(self._mean_square[name])
                change /= root + self._epsilon
                pull = decay * root
                if self._clip_decay:
                    pull = tf.minimum(pull, 1.0)
                change += pull * (start[name] - variable)
            variable.assign_add(change)
            largest.append(tf.reduce_max(tf.abs(change)))
        # A maximum would pass over NaN.
        return tf.add_n(largest)

    def _settings(self, segments):
        """Returns all that the scores depend on, for `Backup`."""
        # Without its name, to which Keras appends a number.
        config = {**self._model.backbone.get_config(), "name": None}
        batches = (segments.batch(step) for step in range(len(segments)))
        statistics = self._mean_square or {}
        return {
            "learning_rate": self.learning_rate,
            "decay": self.decay,
            "epsilon": self._epsilon,
            "clip_decay": self._clip_decay,
            "batch_size": self._batch_size,
            "segment_length": self._length,
            "backbone": json.dumps(config, sort_keys=True, default=str),
            "weights": weights_hash(self._model),
            "mean_square": arrays_hash(sorted(statistics.items())),
            "text": arrays_hash(
                (name, batch[name]) for batch in batches for name in _SCORED
            ),
        }

    def _state(self, done, token_nll, memory):
        """Returns arrays from which `_restore` goes on."""
        arrays = {"done": np.array(done), "nll": token_nll}
        for name, variable in self._variables.items():
            arrays[f"weights/{name}"] = variable.numpy()
        for i, state in enumerate(tf.nest.flatten(memory)):
            # Exact for the dtypes of a memory, and NumPy can save it.
            arrays[f"memory/{i}"] = tf.cast(state, "float32").numpy()
        return arrays

    def _restore(self, backup, token_nll):
        """Returns the segments done and the memory, from a backup if any."""
        saved = backup.restore()
        if saved is None:
            return 0, None
        for name, variable in self._variables.items():
            variable.assign(saved[f"weights/{name}"])
        token_nll[:] = saved["nll"]
        memory = self._initial_memory()
        states = [
            tf.cast(saved[f"memory/{i}"], state.dtype)
            for i, state in enumerate(tf.nest.flatten(memory))
        ]
        return int(saved["done"]), tf.nest.pack_sequence_as(memory, states)

    def _initial_memory(self):
        return self._model.initial_memory(self._batch_size)

    def read(
        self, segments: Segments, first: int, memory: Memory | None = None
    ) -> Iterator:
        """Yields nats `(B, T)`, memory, and gradients by name, per segment."""
        if memory is None:
            memory = self._initial_memory()
        for step in range(first, len(segments)):
            batch = segments.batch(step)
            nll, memory, gradients = self._compiled_read(
                *(tf.constant(batch[name]) for name in _SCORED), memory
            )
            yield nll, memory, gradients

    def _score_and_differentiate(self, inputs, targets, weights, reset, memory):
        with tf.GradientTape() as tape:
            nll, memory = self._model.score(inputs, targets, memory, reset)
            loss = tf.reduce_sum(nll * weights) / (
                self._batch_size * self._length
            )
        gradients = tape.gradient(
            loss,
            list(self._variables.values()),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # Tables that are not tied have sparse gradients.
        dense = map(tf.convert_to_tensor, gradients)
        return nll, memory, dict(zip(self._variables, dense, strict=True))


def collect_mean_square(
    model: keras.Model, segments: Segments, num_segments: int
) -> dict:
    """Computes the mean square of the gradient on training text.

    The segments are spread over the text, because in a part of it many words
    and signs do not occur: their embeddings would have tiny statistics, and
    take steps that ruin them. The weights stay as they are, and memory is that
    of the segments before. These are the statistics of the RMS rule of
    `DynamicEvaluator`.

    Args:
        model: `TransformerXLCausalLM`.
        segments: `Segments` of training text, with the batch size and the
            segment length of the later evaluation: a gradient of the mean over
            more tokens is smaller, and nothing rescales it.
        num_segments: Integer `K`, how many segments to take. Krause et al.
            (2019) take one in 5,000 of the training text.

    Returns:
        Dictionary of float32 arrays by the names of the trainable weights.

    Raises:
        FloatingPointError: If a gradient is not finite.

    Example: see `DynamicEvaluator`.
    """
    check_integer("num_segments", num_segments, 1, len(segments))
    length = segments.segment_length
    follower = DynamicEvaluator(
        model, 0.0, batch_size=segments.batch_size, segment_length=length
    )
    sums = {
        name: tf.Variable(tf.zeros(v.shape))
        for name, v in trainable_variables(model).items()
    }

    def add(gradients):
        for name, total in sums.items():
            total.assign_add(tf.square(gradients[name]))

    add = compile_layers(add, tf.distribute.get_strategy())
    num_before = evaluator.segments_in_memory(model.backbone, length)
    next_step, reader = 0, follower.read(segments, 0)
    for i in range(num_segments):
        step = i * len(segments) // num_segments
        if step - num_before > next_step:  # from a cold start
            next_step = step - num_before
            reader = follower.read(segments, next_step)
        for _ in range(next_step, step + 1):
            *_, gradients = next(reader)
        next_step = step + 1
        add(gradients)
    means = {name: v.numpy() / num_segments for name, v in sums.items()}
    for name, mean in means.items():
        if not np.isfinite(mean).all():
            raise FloatingPointError(
                f"The gradient of {name} on the training text must be finite."
            )
    return means


def trainable_variables(model):
    """Returns the variables of the trainable weights by name."""
    trainable = {id(weight.value) for weight in model.trainable_weights}
    found = {
        name: variable
        for name, variable in weights_by_name(model).items()
        if id(variable) in trainable
    }
    if not found:
        raise ValueError(
            "`model` must have a trainable weight. Received: a model whose "
            "weights are all frozen"
        )
    return found


def checked_mean_square(mean_square, model):
    """Returns tensors by name, after checks of names, shapes and values."""
    found = {
        name: np.asarray(mean_square[name], np.float32) for name in mean_square
    }
    expected = checkpointing.shapes_of(trainable_variables(model))
    checkpointing.check_shapes(
        "`mean_square`", checkpointing.shapes_of(found), expected
    )
    for name, values in found.items():
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(
                "`mean_square` must be finite and at least 0. Received: "
                f"values of {shown(name)} from {values.min()} to "
                f"{values.max()}"
            )
    return {name: tf.constant(values) for name, values in found.items()}
