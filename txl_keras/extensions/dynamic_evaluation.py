"""Dynamic evaluation: a model keeps learning from the text that it scores.

More letters: `P` predictions of a text, which has `P + 1` tokens.
"""

import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checkpoints.tf1 import load_slot
from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import shown
from txl_keras.compilation import compile_layers
from txl_keras.data.corpora.corpus import WHOLE
from txl_keras.data.segments import Segments
from txl_keras.data.sliding_windows import SlidingWindows
from txl_keras.evaluation.backup import Backup
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import scores_of
from txl_keras.evaluation.evaluator import segments_in_memory
from txl_keras.evaluation.report import describe
from txl_keras.extending import register
from txl_keras.layers.memory import assign_variables
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS
from txl_keras.training.stopping import StopRequest
from txl_keras.types import PathLike
from txl_keras.weights import weights_by_name

__all__ = ["DynamicEvaluator", "collect_mean_square", "load_tf1_mean_square"]

_SECONDS_BETWEEN_BACKUPS = 300
# Entries of a batch that its scores depend on.
_SCORED = ("inputs", "targets", "weights", "reset")
# Most tokens of valid for comparing pairs of learning rate and decay.
_SEARCH_TOKENS = 50_000
# With 1e-4, `rms` may be best on valid and ruin the weights later.
_LEARNING_RATES = {"sgd": [0.01, 0.03, 0.1], "rms": [3e-6, 1e-5, 3e-5]}


class DynamicEvaluator(Evaluator):
    """Scores a text while the weights adapt to it, segment by segment.

    Each segment is first scored with the current weights; these scores count.
    Then one gradient step on the loss of the segment, the mean over its B T
    places, changes the trainable weights. With the gradient `g`, the weights
    `w`, the initial weights `w0` and the mean square `MS` of the gradient on
    training text, all per element:

        SGD   w <- w - learning_rate g
        RMS   w <- w - learning_rate g / (sqrt(MS) + epsilon)
                     + min(decay sqrt(MS), 1) (w0 - w)

    The decay pulls the weights that matter most back to their initial values.
    The minimum keeps a step from overshooting `w0`. Krause et al. (2018) have
    this minimum, and also divide `decay` by the mean of sqrt(MS) over weight
    tensors. The code of Krause et al. (2019) has no minimum
    (`clip_decay=False`). Memory from scoring is not computed again.

    After `evaluate` the model has its original weights again. Scores depend on
    the segment length. With several rows they also depend on the batch size,
    because all rows share the weights; published results are for one row.

    Args:
        model: `TransformerXLCausalLM`, in float32 or bfloat16.
        learning_rate: Float, at least 0; with 0 the scores equal the scores of
            the unchanged model.
        mean_square: Optional dictionary of the mean square of the gradient by
            the names of weights, as `collect_mean_square` returns. Selects the
            RMS rule; the default is SGD.
        decay: Float, at least 0, for the RMS rule.
        epsilon: Float above 0, for the RMS rule.
        clip_decay: Boolean, whether the pull back is at most 1.
        batch_size: Integer `B`, the number of streams of the text.
        segment_length: Integer `T`. Use the same for `collect_mean_square`.
        stop: See `Evaluator`.

    Example:

    ```python
    import numpy as np
    from txl_keras.data import Segments
    from txl_keras.extensions.dynamic_evaluation import DynamicEvaluator
    from txl_keras.extensions.dynamic_evaluation import collect_mean_square
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
        learning_rate: float,
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
        model.backbone.check_positions(segment_length)
        if decay and mean_square is None:
            raise ValueError("`decay` must be 0 without `mean_square`.")
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise ValueError("Dynamic evaluation must run on one replica.")
        self.learning_rate = learning_rate
        self.decay = decay
        self._epsilon = epsilon
        self._clip_decay = clip_decay
        self._mean_square = mean_square
        super().__init__(model, strategy, batch_size, segment_length, stop=stop)

    def _check(self, segments):
        if isinstance(segments, SlidingWindows):
            raise ValueError(
                "`segments` must be Segments in dynamic evaluation. Received: "
                "SlidingWindows"
            )
        super()._check(segments)

    def build(self, rows: int) -> None:
        """Creates a memory of hidden states, and compiles functions."""
        is_trained = {id(w.value) for w in self.model.trainable_weights}
        self._weights = {
            name: variable
            for name, variable in sorted(weights_by_name(self.model).items())
            if id(variable) in is_trained
        }
        self._start = tf.nest.map_structure(
            lambda weight: tf.Variable(weight, trainable=False), self._weights
        )
        if self._mean_square is not None:
            # Not arrays, which would become constants of the graph.
            self._mean_square = {
                k: tf.constant(_checked_mean_square(self._mean_square, k, v))
                for k, v in self._weights.items()
            }
        # A variable, because a new number would need a new trace.
        self._rates = tf.Variable([0.0, 0.0], trainable=False)
        self._memory = self.model.backbone.memory_stack(rows)
        states = enumerate(self._memory.state_variables)
        # Everything that changes from segment to segment.
        self._state = self._weights | {f"memory/{i}": x for i, x in states}
        self._compiled_read = compile_layers(
            self._differentiate, self.strategy, self.model, training=True
        )
        self._compiled_update = compile_layers(self._update, self.strategy)

    def begin(self) -> None:
        """Does nothing: the first segment of a text resets memory."""

    def score_segment(self, batch: dict) -> dict:
        """Scores a segment and remembers it, then changes the weights."""
        nll, gradients = self._read(batch)
        self._compiled_update(gradients, self._rates.read_value())
        return {"nll": nll}

    def _read(self, batch):
        """Returns nats `(B, T)` and gradients by name; remembers a segment."""
        nll, gradients, memory = self._compiled_read(
            *(tf.convert_to_tensor(batch[name]) for name in _SCORED),
            self._memory.read(),
        )
        self._memory.write(memory)
        return nll, gradients

    def _differentiate(self, inputs, targets, weights, reset, memory):
        with tf.GradientTape() as tape:
            nll, memory = self.model.score(inputs, targets, memory, reset)
            places = self.batch_size * self.segment_length
            loss = tf.reduce_sum(nll * weights) / places
        gradients = tape.gradient(
            loss, self._weights, unconnected_gradients="zero"
        )
        # Tables that are not tied have sparse gradients.
        dense = {k: tf.convert_to_tensor(g) for k, g in gradients.items()}
        return nll, dense, memory

    def _update(self, gradients, rates):
        learning_rate, decay = tf.unstack(rates)
        for name, variable in self._weights.items():
            change = -learning_rate * tf.cast(gradients[name], tf.float32)
            if self._mean_square is not None:
                root = tf.sqrt(self._mean_square[name])
                change /= root + self._epsilon
                pull = decay * root
                if self._clip_decay:
                    pull = tf.minimum(pull, 1.0)
                pulled = self._start[name] - variable
                change += pull * tf.cast(pulled, tf.float32)
            variable.assign_add(tf.cast(change, variable.dtype))

    def evaluate(
        self,
        segments: Segments,
        steps_per_execution: int | None = 20,
        on_progress: Callable | None = None,
        token_nll: np.ndarray | None = None,
    ) -> dict | None:
        """Scores all targets of a text, as `Evaluator.evaluate` does."""
        if token_nll is None:
            token_nll = np.empty(segments.num_predictions + 1, np.float32)
        self._rates.assign([self.learning_rate, self.decay])
        assign_variables(self._start, self._weights)
        done, saved = self._restore(token_nll), time.monotonic()

        def on_execution(count, total):
            nonlocal done, saved
            done = count
            if on_progress:
                on_progress(done, total)
            is_due = time.monotonic() - saved > _SECONDS_BETWEEN_BACKUPS
            if done < total and is_due:
                self._save(done, token_nll)
                saved = time.monotonic()

        try:
            scores = super().evaluate(
                segments, steps_per_execution, on_execution, token_nll, done
            )
            if scores is None:
                self._save(done, token_nll)
                return None
        except FloatingPointError as error:
            raise FloatingPointError(
                f"{error} In dynamic evaluation the cause may be too high a "
                f"learning rate. Received: learning_rate={self.learning_rate}"
            ) from error
        finally:
            assign_variables(self._weights, self._start)
        # Includes the segments that an earlier process scored.
        is_scored = ~np.isnan(token_nll)
        total = np.sum(token_nll, where=is_scored, dtype=np.float64)
        scores = scores_of(total, is_scored.sum())
        if scores["nll"] > math.log(self.model.backbone.vocabulary_size):
            warnings.warn(
                "Dynamic evaluation has ruined the weights: the loss is above "
                "uniform guessing. Lower the learning rate. Received: "
                f"learning_rate={self.learning_rate}",
                stacklevel=2,
            )
        return scores

    def _save(self, done, token_nll):
        if self.backup:
            # float32 is exact for the dtypes of a memory; NumPy can save it.
            floats = tf.nest.map_structure(
                lambda x: np.array(tf.cast(x, "float32")), self._state
            )
            state = {"done": np.array(done), "nll": token_nll}
            self.backup.save(state | floats)

    def _restore(self, token_nll):
        """Restores a saved state, if any; returns the segments done."""
        saved = self.backup and self.backup.restore()
        if not saved:
            return 0
        token_nll[:] = saved["nll"]
        assign_variables(self._state, {k: saved[k] for k in self._state})
        return int(saved["done"])


def _checked_mean_square(mean_square, name, variable):
    """Returns the statistics of a weight; raises `ValueError` without any."""
    value = mean_square.get(name) if isinstance(mean_square, dict) else None
    found = np.asarray(np.nan if value is None else value, np.float32)
    if found.shape != tuple(variable.shape) or not (found >= 0).all():
        raise ValueError(
            "`mean_square` must have an array of numbers of at least 0 for "
            "each trainable weight, as `collect_mean_square` returns of this "
            f"model, after `enable_lora`. Received for {name} of shape "
            f"{tuple(variable.shape)}: {shown(value)}"
        )
    return found


def collect_mean_square(
    model: keras.Model, segments: Segments, num_segments: int
) -> dict:
    """Computes the mean square of the gradient on training text.

    These are the statistics of the RMS rule of `DynamicEvaluator`. The segments
    are spread over the text, because in one part of it many words and symbols
    do not occur: their embeddings would have tiny statistics and take steps
    that ruin them. The weights do not change, and memory comes from the
    preceding segments.

    Args:
        model: `TransformerXLCausalLM`.
        segments: `Segments` of training text, with the batch size and the
            segment length of the later evaluation: a gradient of the mean over
            more tokens is smaller, and nothing rescales it.
        num_segments: Integer `K`, how many segments to use. Krause et al.
            (2019) use one in 5,000 of the training text.

    Returns:
        Dictionary of float32 arrays by the names of the trainable weights.

    Example: see `DynamicEvaluator`.
    """
    check_integer("num_segments", num_segments, 1, len(segments))
    length = segments.segment_length
    reader = DynamicEvaluator(
        model, 0.0, batch_size=segments.batch_size, segment_length=length
    )
    num_before = segments_in_memory(model.backbone, length)
    sums, next_step = {}, 0
    for i in range(num_segments):
        step = i * len(segments) // num_segments
        if step - num_before > next_step:
            next_step = step - num_before
            reader._memory.reset_state()
        for before in range(next_step, step + 1):
            _, gradients = reader._read(segments.batch(before))
        next_step = step + 1
        for name, gradient in gradients.items():
            sums[name] = sums.get(name, 0.0) + tf.square(
                tf.cast(gradient, tf.float32)
            )
    return {name: total.numpy() / num_segments for name, total in sums.items()}


def load_tf1_mean_square(prefix: PathLike, config: dict) -> dict:
    """Loads Adam's mean squares of gradients from a TensorFlow 1 checkpoint.

    The published script of Krause et al., 2019, uses these with the weights of
    the same checkpoint, instead of the statistics that it collects.

    Args:
        prefix, config: See `txl_keras.checkpoints.load_tf1`.

    Returns:
        Dictionary of float32 arrays by the names of weights, for
        `DynamicEvaluator(mean_square=...)`.

    Example, with files that are not part of the package:

    ```
    model = load_tf1("model.ckpt-0", "config.json")
    mean_square = load_tf1_mean_square("model.ckpt-0", "config.json")
    evaluator = DynamicEvaluator(  # the published settings for enwik8
        model, 1.2e-5, mean_square, decay=24, epsilon=1e-4, clip_decay=False,
        segment_length=128,
    )
    ```
    """
    model = load_slot(prefix, config, None, {}, slot="/Adam_1")
    return {
        name: np.asarray(weight, np.float32)
        for name, weight in weights_by_name(model).items()
    }


class Dynamic(options.Options):
    """Holds options of dynamic evaluation.

    Evaluation options:
    dynamic: Dynamic evaluation: change the weights after each segment, by its
        gradient (sgd), or by the gradient divided by the root mean square of
        gradients on train (rms). Default: fixed weights.
    dynamic_learning_rate: Learning rate of --dynamic, or several to try on up
        to 50,000 tokens of valid. Default: 0.01,0.03,0.1 for sgd and
        3e-6,1e-5,3e-5 for rms.
    dynamic_decay: Decay towards the original weights in --dynamic=rms, or
        several to try on valid.
    dynamic_segments: Number of segments, spread over train, whose gradients are
        the statistics of --dynamic=rms.
    """

    dynamic: options.one_of(["sgd", "rms"]) = None
    dynamic_learning_rate: list = None
    dynamic_decay: list = ["0"]
    dynamic_segments: options.integer(1) = 200

    batch_size = 1  # by default

    @classmethod
    def check(cls):
        """Checks the flags before anything is loaded."""
        users = dict.fromkeys(["dynamic_decay", "dynamic_segments"], ["rms"])
        options.check_used("dynamic", users)
        for rate, decay in _pairs():
            check_number("dynamic_learning_rate", rate, 0)
            check_number("dynamic_decay", decay, 0)
        expected = "`stride` must be left out with --dynamic."
        options.refuse(FLAGS.stride is not None, expected)

    @classmethod
    def build(cls, model, settings, config, workdir, stop):
        """Returns an evaluator, with the best rates on valid, and facts."""

        segments = functools.partial(
            _segments, config, model.tokenizer, settings
        )
        pairs, mean_square, count = _pairs(), None, 0
        if FLAGS.dynamic == "rms":
            train = segments("train")
            count = min(FLAGS.dynamic_segments, len(train))
            print(f"Collecting statistics of {count} segments.")
            mean_square = collect_mean_square(model, train, count)
        sizes = {k: settings[k] for k in ("batch_size", "segment_length")}
        evaluator = DynamicEvaluator(
            model, pairs[0][0], mean_square, pairs[0][1], stop=stop, **sizes
        )
        if len(pairs) > 1:
            _search(evaluator, segments("valid"), pairs, model.tokenizer)
        facts = {
            "dynamic": FLAGS.dynamic,
            "learning_rate": evaluator.learning_rate,
            "decay": evaluator.decay,
            "segments": count,
        }
        if workdir is not None:
            path = workdir.file(f"evaluation_{FLAGS.split}_state")
            evaluator.backup = Backup(path, {**settings, **facts})
        return evaluator, facts


def _pairs():
    """Returns the pairs of learning rate and decay to try."""
    rates = _LEARNING_RATES[FLAGS.dynamic]
    if FLAGS.dynamic_learning_rate is not None:
        rates = options.numbers("dynamic_learning_rate", float)
    decays = options.numbers("dynamic_decay", float)
    return [*itertools.product(rates, decays)]


def _segments(config, tokenizer, settings, split):
    """Returns segments of a split of the run's text, or else of --corpus."""
    run_corpus, limit = config["corpus"], None
    options.refuse(
        not run_corpus and FLAGS.split == WHOLE,
        "`split` must be valid or test with --preset and --dynamic, unless it "
        "is sgd with one --dynamic_learning_rate: statistics come from the "
        "train split of --corpus, and rates are compared on valid.",
    )
    names = ("data_dir",) if run_corpus else None
    text = data_flags.corpus_options(run_corpus, names)
    corpus, prepared = data_flags.prepare_split(text, tokenizer, split)
    if run_corpus:
        expected = config["data"].get(split)
        data_flags.check_run_text(prepared, expected, corpus, FLAGS.workdir)
    if split == "valid":
        limit = min(_SEARCH_TOKENS, FLAGS.max_eval_tokens or _SEARCH_TOKENS)
    tokens, documents = prepared.head(limit)
    names = "batch_size", "segment_length", "reset_documents"
    sizes = {name: settings[name] for name in names}
    return Segments(tokens, drop_remainder=False, documents=documents, **sizes)


def _search(evaluator, valid, pairs, tokenizer):
    """Sets the evaluator to the best pair of learning rate and decay."""
    losses = {}
    for pair in pairs:
        evaluator.learning_rate, evaluator.decay = pair
        try:
            scores = evaluator.evaluate(valid)
        except FloatingPointError:
            continue  # too high a learning rate
        losses[pair] = scores["nll"]
        print(
            f"valid, learning rate {pair[0]:g}, decay {pair[1]:g}: "
            f"{describe({'nll': scores['nll']}, tokenizer)}",
            flush=True,
        )
    if not losses:
        raise FloatingPointError(
            "The weights are not finite at any `dynamic_learning_rate`."
        )
    evaluator.learning_rate, evaluator.decay = min(losses, key=losses.get)


register("evaluator", dynamic=Dynamic)
