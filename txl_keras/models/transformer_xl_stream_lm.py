"""A language model of several token streams, such as compound words of music.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size, `F` streams, `V`
vocabulary of a stream.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_keras import samplers
from txl_keras.callbacks import ResetMemory
from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.stream_embedding import StreamEmbedding
from txl_keras.layers.sublayers import Dense
from txl_keras.models.fit_data import check_batch_size
from txl_keras.models.fit_data import naming_validation
from txl_keras.models.generation.request import check_stop_ids
from txl_keras.models.generation.request import generation_memory_length
from txl_keras.models.generation.request import generation_seed
from txl_keras.models.generation.stream_generator import StreamGenerator
from txl_keras.models.keeps_compiled import KeepsCompiled
from txl_keras.models.preset_model import BackboneModel
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone


@keras.saving.register_keras_serializable(package="txl_keras")
class TransformerXLStreamLM(KeepsCompiled, BackboneModel):
    """Predicts the next step of several token streams, a softmax for each.

    A step has one id per stream, such as the type, pitch and duration of a
    note. Their embeddings are summed (`StreamEmbedding`), the backbone reads
    the sums, and every stream has its own softmax. Given the past, the ids of
    a step are independent of each other, unless one stream is `first`.

    A stream that does not exist in some steps should have an id of its own for
    that, such as 0, which is learned like others. Then `generate` draws it,
    too. Weights of 0 leave a target out of the loss: for padding, and for what
    is not known.

    The loss of `fit` is the mean over streams of their mean negative
    log-likelihoods, as in the code of Compound Word Transformer; the metrics
    `<stream>_nats` are those of each stream. Rows of batches continue those of
    the batch before, as in `TransformerXLCausalLM`. The memory is reset when
    an epoch, `evaluate` or `predict` begins.

    Args:
        backbone: A `TransformerXLBackbone` with `vocabulary_size=None`,
            `stateful=True`, relative positions and no `look_ahead`.
        vocabulary_sizes: Dictionary of the F streams by name, in the order of
            their ids, with the number `V` of ids of each.
        embedding_dims: Optional sequence of F integers, the sizes of the
            embeddings, see `StreamEmbedding`. By default the `hidden_dim` of
            the backbone.
        first: Optional name of the stream that is drawn first. The logits of
            the others get a learned row `(V,)` for each of its ids. (The
            paper's code concatenates its embedding to the hidden state before
            linear projections to logits, which is also a sum of both.)

    Call arguments:
        token_ids: Integer tensor of shape `(B, T, F)`; or a dictionary of it,
            `"token_ids"`, and of `"reset"`, booleans `(B, T)` or `(B,)`, true
            at first steps of texts, from which nothing before them is seen.
        training: Boolean, for dropout.

    Returns:
        Dictionary of logits by name, float32 tensors of shape `(B, T, V)`,
        without the rows for `first`, whose ids are not known yet.

    Raises:
        ValueError: If the backbone is of another kind, or the arguments do not
            fit together.

    Example:

    ```python
    import numpy as np
    from txl_keras.models import TransformerXLBackbone, TransformerXLStreamLM

    backbone = TransformerXLBackbone(
        vocabulary_size=None, num_layers=1, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=12, stateful=True,
    )
    model = TransformerXLStreamLM(
        backbone, {"type": 3, "pitch": 90}, embedding_dims=(4, 16), first="type"
    )
    model.compile("adam")
    ids = np.stack([np.arange(18) % 3, np.arange(18) + 50], axis=1)[None]
    model.fit(ids[:, :-1], ids[:, 1:], batch_size=1, verbose=0)
    nll, memory = model.score(ids[:, :-1], ids[:, 1:])  # (1, 17, 2)
    more = model.generate(ids[0], 4, sampler={"pitch": "top_p"})  # (22, 2)
    ```

    Reference:
        [Hsiao et al., 2021](https://arxiv.org/abs/2101.02402).
    """

    backbone_class = TransformerXLBackbone

    def __init__(
        self,
        backbone,
        vocabulary_sizes,
        embedding_dims=None,
        first=None,
        **kwargs,
    ):
        _check_backbone(backbone)
        _check_names(vocabulary_sizes)
        if first is not None and first not in vocabulary_sizes:
            raise ValueError(
                "`first` must be None or one of the streams, "
                f"{list(vocabulary_sizes)}. Received: first={shown(first)}"
            )
        super().__init__(backbone, **kwargs)
        self.streams = list(vocabulary_sizes)
        self.first = first
        self.embedding = StreamEmbedding(
            list(vocabulary_sizes.values()),
            backbone.hidden_dim,
            embedding_dims,
            dtype=self.dtype_policy,
            name="embedding",
        )
        self._heads = [
            Dense(
                size,
                kernel_initializer=backbone.kernel_initializer(),
                dtype=self.dtype_policy,
                name=f"logits_{i}",
            )
            for i, size in enumerate(self.embedding.vocabulary_sizes)
        ]
        self._nats = [
            keras.metrics.Mean(f"{name}_nats") for name in self.streams
        ]
        self.build((None, None, len(self.streams)))

    @property
    def vocabulary_sizes(self):
        """Returns the number of ids of each stream, by name."""
        sizes = self.embedding.vocabulary_sizes
        return dict(zip(self.streams, sizes, strict=True))

    def build(self, token_ids_shape):
        self.embedding.build(token_ids_shape)
        for head in self._heads:
            head.build((None, None, self.backbone.hidden_dim))
        self._rows = {}
        if self.first is not None:
            sizes = self.vocabulary_sizes
            self._rows = {
                name: self.add_weight(
                    shape=(sizes[self.first], size),
                    initializer="zeros",
                    name=f"given_{i}",
                )
                for i, (name, size) in enumerate(sizes.items())
                if name != self.first
            }

    def call(self, token_ids, training=None):
        reset = None
        if isinstance(token_ids, dict):
            _check_inputs(token_ids)
            token_ids, reset = token_ids["token_ids"], token_ids["reset"]
        hidden, _ = self.backbone(
            embeddings=self.embedding(token_ids), reset=reset, training=training
        )
        return self._logits(hidden)

    def _logits(self, hidden):
        return {
            name: tf.cast(head(hidden), tf.float32)
            for name, head in zip(self.streams, self._heads, strict=True)
        }

    def _given(self, name, logits, first_ids):
        """Adds to logits `(..., V)` the rows for ids of the first stream."""
        if name not in self._rows:
            return logits
        return logits + tf.gather(
            tf.cast(self._rows[name], logits.dtype), first_ids
        )

    def score(self, inputs, targets, memory=None, reset=None, training=False):
        """Computes the negative log-likelihood of every target.

        Args:
            inputs: Integer tensor of shape `(B, T, F)`.
            targets: Integer tensor of shape `(B, T, F)`, the steps that follow.
            memory: Optional `Memory`; by default that of a cold start.
            reset: Optional booleans, see `TransformerXLBackbone`.
            training: Boolean, for dropout.

        Returns:
            The pair `(nll, memory)`: float32 `(B, T, F)` in nats, and the new
            `Memory`. With `first`, the other streams are scored given its
            targets.
        """
        embeddings = self.embedding(inputs)
        if memory is None:
            memory = self.initial_memory(ops.shape(embeddings)[0])
        hidden, memory = self.backbone(
            embeddings=embeddings,
            memory=memory,
            reset=reset,
            training=training,
        )
        return self._nll(self._logits(hidden), targets), memory

    def _nll(self, logits, targets):
        """Computes the negative log-likelihoods `(B, T, F)` of targets."""
        ids = self._split("targets", targets)
        return tf.stack(
            [
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.cast(ids[name], tf.int32),
                    self._given(name, logits[name], ids.get(self.first)),
                )
                for name in self.streams
            ],
            axis=-1,
        )

    def compute_loss(
        self,
        x=None,
        y=None,
        y_pred=None,
        sample_weight=None,
        training=True,
    ):
        """Computes the loss, and updates the metric of each stream."""
        if self.loss is not None:
            raise ValueError(
                "`loss` must not be passed to `compile`: the model has its "
                f"own. Received: loss={shown(self.loss)}"
            )
        weights = tf.ones(tf.shape(y), tf.float32)
        if sample_weight is not None:
            weights *= _by_stream(tf.cast(sample_weight, tf.float32))
            # Targets that do not count may be anything, such as -1.
            y = tf.where(weights != 0, y, tf.zeros_like(y))
        nll = self._nll(y_pred, y)
        for i, metric in enumerate(self._nats):
            metric.update_state(nll[..., i], weights[..., i])
        totals = tf.reduce_sum(weights * nll, axis=(0, 1))
        counts = tf.reduce_sum(weights, axis=(0, 1))
        return tf.reduce_mean(tf.math.divide_no_nan(totals, counts))

    def fit(self, x=None, y=None, batch_size=None, epochs=1, **kwargs):
        """Trains like `keras.Model.fit`, in the order of the text.

        Args:
            x: Integer array `(N * B, T, F)`: with a batch size of B, rows r,
                B + r, 2 B + r continue each other. Or a dictionary of
                `"token_ids"` and `"reset"`, see the call arguments. Or what
                else `keras.Model.fit` takes.
            y: Integer array like `x`, the steps that follow.
            batch_size: Integer `B`.
            epochs, **kwargs: See `keras.Model.fit`. `sample_weight` is of shape
                `(N * B, T, F)`, `(N * B, T)` or `(N * B,)`. Targets of weight 0
                may be anything.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: If `shuffle=True`, or an array has ids that are out of
                range.
        """
        kwargs.setdefault("shuffle", False)
        validation = kwargs.get("validation_data")
        if isinstance(validation, (tuple, list)):
            rows = kwargs.get("validation_batch_size") or batch_size
            with naming_validation():
                self._check_arrays(rows, *validation)
        self._check_arrays(batch_size, x, y, kwargs.get("sample_weight"))
        return super().fit(x, y, batch_size, epochs, **_with_reset(kwargs))

    def evaluate(self, x=None, y=None, batch_size=None, **kwargs):
        """Evaluates like `keras.Model.evaluate`, from a cold start.

        See `fit` for the data. With `return_dict=True` the result has the nats
        of each stream by name.
        """
        self._check_arrays(batch_size, x, y, kwargs.get("sample_weight"))
        return super().evaluate(x, y, batch_size, **_with_reset(kwargs))

    def predict(self, x, batch_size=None, **kwargs):
        """Predicts like `keras.Model.predict`, from a cold start."""
        self._check_arrays(batch_size, x)
        return super().predict(x, batch_size, **_with_reset(kwargs))

    def _check_arrays(self, batch_size, x, y=None, sample_weight=None):
        """Checks ids before anything is trained."""
        if isinstance(x, dict):
            _check_inputs(x)
            x = x["token_ids"]
        if isinstance(x, (np.ndarray, tf.Tensor)):
            check_batch_size(batch_size)
            self._split("x", x)
        if isinstance(y, np.ndarray):
            if sample_weight is not None:
                counts = _by_stream(np.asarray(sample_weight)) != 0
                y = np.where(counts, y, 0)
            self._split("y", y)

    def _split(self, argument, ids):
        """Checks ids `(B, T, F)` and returns those of each stream by name."""
        check_shape(argument, ids, (None, None, len(self.streams)))
        return {
            name: check_token_ids(
                f"{argument}[..., {i}]",
                ids[..., i],
                size,
                remedy=f"Change the ids of {name!r}, or build the model with "
                "larger `vocabulary_sizes`.",
            )
            for i, (name, size) in enumerate(self.vocabulary_sizes.items())
        }

    def generate(
        self,
        prompts,
        max_new_steps,
        stop_token_ids=None,
        sampler="random",
        seed=None,
        memory_length=None,
    ):
        """Continues prompts step by step, each stream with its own sampler.

        Keys and values of the last steps are cached, so time per step is
        constant. The memory of `fit` and of calls stays as it is. What is
        compiled is kept for the next call with as many prompts, equal samplers
        and the same memory length.

        Args:
            prompts: Integer array `(P, F)` of one prompt; an array
                `(B, P, F)`; or a list of B arrays, which may differ in P. Each
                has at least one step.
            max_new_steps: Integer, the most steps after each prompt.
            stop_token_ids: Optional dictionary of lists of ids by the names of
                streams, such as `{"type": [0]}`. A row ends before the first
                step that has one of them.
            sampler: A `Sampler` or its name, see `txl_keras.samplers.get`; or a
                dictionary of them by the names of streams, where a missing one
                is `"random"`. A `BeamSampler` or a repetition penalty is not
                possible.
            seed: Optional integer. Row r draws with `seed + r`. By default a
                new one in each call.
            memory_length: Optional integer, the number of steps to attend to;
                by default that of the backbone.

        Returns:
            int32 array `(N, F)` of prompt and continuation; for a batch a list
            of them.

        Raises:
            ValueError: If an argument is out of its range or unknown.
            FloatingPointError: If the model returns NaN.
        """
        prompts, is_single = self._check_prompts(prompts)
        check_integer("max_new_steps", max_new_steps, 0)
        stop_ids = self._stop_ids(stop_token_ids or {})
        write = self._keep(
            StreamGenerator,
            self._samplers(sampler),
            generation_memory_length(self.backbone, memory_length),
        )
        seed = generation_seed(seed, len(prompts))
        rows = [list(prompt) for prompt in prompts]
        is_ended = [False] * len(rows)
        for steps in write(prompts, max_new_steps, seed):
            for i, step in enumerate(steps):
                is_ended[i] |= any(
                    int(token) in ids
                    for ids, token in zip(stop_ids, step, strict=True)
                )
                if not is_ended[i]:
                    rows[i].append(step)
            if all(is_ended):
                break
        rows = [np.stack(row) for row in rows]
        return rows[0] if is_single else rows

    def _check_prompts(self, prompts):
        """Returns prompts as int32 arrays, and whether it is a single one."""
        check_list("prompts", prompts)
        is_single = len(prompts) > 0 and np.ndim(prompts[0]) < 2
        rows = list(map(np.asarray, [prompts] if is_single else prompts))
        for i, row in enumerate(rows):
            check_shape(f"prompts[{i}]", row, (None, len(self.streams)))
            self._split(f"prompts[{i}]", row[None])
        if not rows or not all(map(len, rows)):
            raise ValueError(
                "`prompts` must have at least one row, of at least one step "
                f"each. Received: lengths {shown(list(map(len, rows)))}"
            )
        return [row.astype("int32") for row in rows], is_single

    def _stop_ids(self, stop_token_ids):
        """Returns for each stream the set of ids that end a row."""
        self._check_streams("stop_token_ids", stop_token_ids)
        return [
            check_stop_ids(
                f"stop_token_ids[{name!r}]", stop_token_ids.get(name, ()), size
            )
            for name, size in self.vocabulary_sizes.items()
        ]

    def _check_streams(self, argument, values):
        if not isinstance(values, dict) or not values.keys() <= {*self.streams}:
            raise ValueError(
                f"`{argument}` must be a dictionary by the names of streams, "
                f"{self.streams}. Received: {argument}={shown(values)}"
            )

    def sample(self, hidden, stream_samplers, seeds):
        """Draws the ids of one step.

        Args:
            hidden: Hidden states of shape `(B, D)`.
            stream_samplers: Sequence of a `Sampler` for each stream.
            seeds: uint32 tensor `(B,)`, one per row.

        Returns:
            int32 tensor of shape `(B, F)`.
        """
        logits, ids = self._logits(hidden), {}
        # The first stream before those that depend on it.
        for name in sorted(self.streams, key=lambda name: name != self.first):
            scores = self._given(name, logits[name], ids.get(self.first))
            stream = self.streams.index(name)
            ids[name] = stream_samplers[stream](
                tf.nn.log_softmax(scores), fold_in(seeds, stream)
            )
        return tf.stack([ids[name] for name in self.streams], axis=-1)

    def _samplers(self, sampler):
        """Returns a tuple of a `Sampler` for each stream."""
        if not isinstance(sampler, dict):
            sampler = dict.fromkeys(self.streams, sampler)
        self._check_streams("sampler", sampler)
        chosen = tuple(
            samplers.get(sampler.get(name, "random")) for name in self.streams
        )
        for name, value in zip(self.streams, chosen, strict=True):
            if (
                not isinstance(value, samplers.Sampler)
                or value.repetition_penalty is not None
            ):
                raise ValueError(
                    "`sampler` must be of `Sampler`s without a "
                    f"repetition_penalty. Received: {value!r} for {name!r}"
                )
        return chosen

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_sizes": self.vocabulary_sizes,
            "embedding_dims": self.embedding.embedding_dims,
            "first": self.first,
        }


def _check_backbone(backbone):
    is_fit = (
        getattr(backbone, "vocabulary_size", 0) is None
        and backbone.stateful
        and backbone.remembers
        and not backbone.look_ahead
    )
    if not is_fit:
        raise ValueError(
            "`backbone` must be a TransformerXLBackbone with vocabulary_size="
            "None, stateful=True, relative positions and look_ahead=0. "
            f"Received: backbone={shown(backbone)}"
        )


def _check_names(vocabulary_sizes):
    if (
        not isinstance(vocabulary_sizes, dict)
        or not vocabulary_sizes
        or not all(isinstance(name, str) and name for name in vocabulary_sizes)
    ):
        raise ValueError(
            "`vocabulary_sizes` must be a dictionary of sizes by the names of "
            "streams, such as {'type': 3, 'pitch': 128}. Received: "
            f"vocabulary_sizes={shown(vocabulary_sizes)}"
        )


def _check_inputs(inputs):
    if set(inputs) != {"token_ids", "reset"}:
        raise ValueError(
            "Inputs must be token ids, or a dictionary of 'token_ids' and "
            f"'reset'. Received: a dictionary of {sorted(inputs)}"
        )


def _by_stream(weights):
    """Expands weights `(B,)`, `(B, T)` or `(B, T, F)` to three axes."""
    return weights[(..., *[None] * (3 - len(weights.shape)))]


def _with_reset(kwargs):
    """Adds `ResetMemory` to the callbacks, unless they are those of `fit`."""
    callbacks = kwargs.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return kwargs
    return {**kwargs, "callbacks": [callbacks or [], ResetMemory()]}
