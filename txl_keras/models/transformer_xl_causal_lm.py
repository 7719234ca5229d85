"""The Transformer-XL language model."""

from typing import Any

import keras
import numpy as np
from keras import ops

from txl_keras import metrics as token_metrics
from txl_keras import samplers
from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_list
from txl_keras.data.segments import Segments
from txl_keras.extending import register
from txl_keras.keras_internals import build_and_stay_open
from txl_keras.layers.adaptive_softmax import AdaptiveSoftmax
from txl_keras.layers.memory import Memory
from txl_keras.models.fit_data import Batches
from txl_keras.models.fit_data import EpochStarts
from txl_keras.models.fit_data import Indexed
from txl_keras.models.fit_data import as_data
from txl_keras.models.fit_data import check_arrays
from txl_keras.models.fit_data import check_class_weight
from txl_keras.models.fit_data import check_segment_length
from txl_keras.models.fit_data import complete
from txl_keras.models.fit_data import is_text
from txl_keras.models.fit_data import of_arrays
from txl_keras.models.fit_data import text_segments
from txl_keras.models.generation.prompts import encode_texts
from txl_keras.models.lstm_backbone import LSTMBackbone
from txl_keras.models.preset_model import BackboneModel
from txl_keras.models.text_methods import TextMethods
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.types import PathLike
from txl_keras.types import Tensor


@keras.saving.register_keras_serializable(package="txl_keras")
class TransformerXLCausalLM(TextMethods, BackboneModel):
    """Predicts the next token from a segment and its memory.

    The softmax has the same clusters as the token embedding: one, unless the
    backbone has `cutoffs`. There are two ways to use the model:

    - *Stateful*: `model(token_ids)`, `fit`, `evaluate` and `predict` read and
      update memory that the model holds in variables. Row r of a batch
      continues row r of the batch before it, so samples must not be shuffled.
      With arrays and a batch size of B, samples r, B + r, 2 B + r are one
      stream (`Segments.arrays` returns this layout). Training and inference
      have separate memories; `reset_memory` resets all of them. `fit` resets
      training memory where its data begins again. `evaluate` and `predict`
      reset inference memory when they start. `test_on_batch` and direct calls
      continue from inference memory. `train_on_batch` continues from `fit`; see
      there for batches of another size. Calls with `training=True` have
      training memory, too, except with the default loss on TensorFlow.
    - *Functional*: `score` and `log_probs` take memory as a value and return
      the new memory.

    Args:
        backbone: A `TransformerXLBackbone`, or an `LSTMBackbone` as the
            baseline.
        tie_embeddings, tie_projections: Which weights the softmax shares with
            the token embedding, see `AdaptiveSoftmax`; by default all.
        tokenizer: Optional tokenizer of `txl_keras.data`. It is saved with the
            model and allows methods to take text.

    Call arguments:
        token_ids: Integer tensor of shape `(B, T)`.
        training: Boolean, for dropout.

    Returns:
        Logits, float32 tensor of shape `(B, T, V)`; with `cutoffs` they are
        log-probabilities.

    Example:

    ```python
    import numpy as np
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    ids = np.arange(60).reshape(3, 20)
    nll, memory = model.score(ids[:, :-1], ids[:, 1:])  # (3, 19)

    model.compile("adam")
    model.fit(ids[:, :-1], ids[:, 1:], batch_size=3, shuffle=False, verbose=0)
    ```

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860).
    """

    backbone_classes = (TransformerXLBackbone, LSTMBackbone)
    # Set by `compile` for the default loss.
    fit_steps = None

    def __init__(
        self,
        backbone: keras.Model,
        tie_embeddings: bool = True,
        tie_projections: bool | str = True,
        tokenizer: Any = None,
        **kwargs,
    ):
        super().__init__(backbone, tokenizer, **kwargs)
        if backbone.look_ahead:
            raise ValueError(
                "`backbone` must have look_ahead=0, because the tokens after a "
                "position include the one that is predicted. Received: "
                f"look_ahead={backbone.look_ahead}"
            )
        self.softmax = AdaptiveSoftmax(
            backbone.token_embedding,
            tie_embeddings=tie_embeddings,
            tie_projections=tie_projections,
            kernel_initializer=backbone.kernel_initializer(),
            projection_initializer=backbone.projection_initializer(),
            dtype=self.dtype_policy,
            name="softmax",
        )
        self._training_memory, self._inference_memory = backbone.memory_stacks()
        build_and_stay_open(self)
        backbone.freeze_for_lora()

    def build(self, token_ids_shape):
        self.softmax.build()

    def call(self, token_ids, training=None):
        # A batch of `KerasSteps`, which needs losses instead of logits.
        batch = token_ids if isinstance(token_ids, dict) else {}
        if batch and (ON_TENSORFLOW or self.fit_steps is None):
            raise ValueError(
                "`x` must be token ids, or a dataset of pairs (inputs, "
                "targets), where logits are computed: see `compile`. Received: "
                f"dicts of {sorted(batch)}"
            )
        inputs = batch.get("inputs", token_ids)
        stack = self._training_memory if training else self._inference_memory
        memory = stack.read(ops.shape(inputs)[0])
        hidden, memory = self.backbone(
            inputs, memory=memory, reset=batch.get("reset"), training=training
        )
        stack.write(memory)
        if batch:
            return self.softmax(hidden, batch["targets"])
        return self.softmax.logits(hidden)

    def score(
        self,
        inputs: Tensor,
        targets: Tensor,
        memory: Memory | None = None,
        reset: Tensor | None = None,
        **kwargs,
    ) -> tuple[Tensor, Memory]:
        """Computes the negative log-likelihood of every target.

        Args:
            inputs: Integer tensor of shape `(B, T)`.
            targets: Integer tensor of shape `(B, T)`, the token that follows
                each input.
            memory: Optional `Memory` of any length; by default the memory of a
                cold start.
            reset: Optional boolean `(B,)`, true for rows whose memory is reset
                before reading.
            **kwargs: Other call arguments of the backbone: `training`,
                `dropout_seed` and `first_row`.

        Returns:
            The pair `(nll, memory)`: float32 `(B, T)` in nats, and the new
            `Memory`.
        """
        kwargs.setdefault("training", False)
        hidden, memory = self.backbone(
            inputs, memory=memory, reset=reset, **kwargs
        )
        return self.softmax(hidden, targets), memory

    def log_probs(
        self,
        inputs: Tensor,
        memory: Memory | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """Computes log-probabilities of the next token at every position.

        Args:
            inputs, memory, reset: See `score`.

        Returns:
            The pair `(log_probs, memory)`: float32 `(B, T, V)` and the new
            `Memory`.
        """
        hidden, memory = self.backbone(inputs, memory=memory, reset=reset)
        return self.softmax.log_probs(hidden), memory

    def reset_memory(self) -> None:
        """Resets the memory of `fit`, of `evaluate`, and of calls."""
        self._training_memory.reset_state()
        self._inference_memory.reset_state()
        if self.fit_steps and self.fit_steps.trainer:
            self.fit_steps.trainer.memory.reset_state()

    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = "auto",
        *,
        sampler: Any = "random",
        **kwargs,
    ) -> None:
        """Compiles with the loss and the metrics of a language model.

        The default loss is the cross-entropy of the next token in nats, and the
        default metric is bits per token. Then `fit` runs the steps of
        `txl_keras.training.Trainer`, and neither `fit` nor `evaluate` computes
        logits. `weighted_metrics` may be other metrics of `txl_keras.metrics`,
        or `"bits_per_token"`, `"perplexity"` and, with a lossless tokenizer,
        `"bits_per_byte"`. Biases and layer normalization have no weight decay.

        Keras's own steps, which compute logits and report only the metrics that
        are passed, run in these cases: another `loss`, other metrics,
        `loss_weights`, weights with a `regularizer` or `constraint` or in
        float8, and a subclass that overrides `call`, `compute_loss` or
        `compute_metrics`. Then weight decay applies to all weights, except with
        `Muon` and `Lamb`: see the optimizer's `exclude_from_weight_decay` and
        `keras.Model.compile`.

        `sampler` is a name or an object for `generate`, see
        `txl_keras.samplers.get`. The default draws from the distribution of the
        model; KerasHub's is `"top_k"`.
        """
        self.sampler = samplers.get(sampler)
        self.fit_steps = None
        if loss != "auto":
            super().compile(optimizer, loss, **kwargs)
            return
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = kwargs.get("weighted_metrics") or ["bits_per_token"]
        check_list("weighted_metrics", metrics)
        metrics = [token_metrics.get(m, self.tokenizer) for m in metrics]
        if self._needs_logits(kwargs) or not all(
            hasattr(m, "update_from_nll") for m in metrics
        ):
            kwargs["weighted_metrics"] = metrics
            super().compile(optimizer, loss, **kwargs)
            return
        kwargs.pop("weighted_metrics", None)
        if not ON_TENSORFLOW:
            from txl_keras.models.keras_steps import KerasSteps

            super().compile(optimizer, loss, **kwargs)
            self.fit_steps = KerasSteps(self, metrics)
            return
        from txl_keras.models.fit_steps import FitSteps
        from txl_keras.training.updates import check_supported

        jit_compile = bool(kwargs.pop("jit_compile", True))
        if kwargs.get("run_eagerly"):
            jit_compile = None
        self.fit_steps = FitSteps(self, metrics, jit_compile)
        if self.distribute_strategy.num_replicas_in_sync > 1:
            # Keras's loop over several steps is for one replica.
            kwargs["steps_per_execution"] = 1
        # `Trainer` compiles its steps and scales their loss.
        kwargs.update(jit_compile=False, auto_scale_loss=False)
        super().compile(optimizer, loss, **kwargs)
        if self.optimizer is not None:
            check_supported(self.optimizer)

    def _needs_logits(self, options):
        """Returns whether the user's choices need Keras's own steps."""
        return (
            any(
                getattr(type(self), hook)
                is not getattr(TransformerXLCausalLM, hook)
                for hook in ("call", "compute_loss", "compute_metrics")
            )
            or any(options.get(name) for name in ("metrics", "loss_weights"))
            or any(
                variable.regularizer
                or variable.constraint
                or variable.overwrite_with_gradient  # float8
                for variable in self.trainable_variables
            )
        )

    def retrace(self) -> None:
        """Traces `fit` and `evaluate` again after layers have changed."""
        steps = self.fit_steps
        if steps is not None and ON_TENSORFLOW:
            self.fit_steps = type(steps)(self, steps.metrics, steps.jit_compile)

    @property
    def metrics(self) -> list:
        """Returns the metrics of `fit` and `evaluate`, a list."""
        metrics, steps = super().metrics, self.fit_steps
        if steps:  # Keras keeps the metrics of an earlier `compile`
            metrics = [m for m in metrics if m.name != "compile_metrics"]
        if steps and not ON_TENSORFLOW:  # Keras's own loss is a mean of means
            metrics = [steps.loss, *(m for m in metrics if m.name != "loss")]
        return metrics + (steps.metrics if steps else [])

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs
    ):
        """Computes the loss of logits, or the mean of the default loss."""
        if isinstance(x, dict):
            return self.fit_steps.compute_loss(y, y_pred, sample_weight)
        return super().compute_loss(x, y, y_pred, sample_weight, **kwargs)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict:
        """Updates the metrics and returns them by name."""
        if isinstance(x, dict):
            self.fit_steps.update_metrics(x, y, y_pred, sample_weight)
            return self.get_metrics_result()
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def train_step(self, *data: dict) -> dict:
        """Trains on a batch: see `fit`.

        Args:
            data: Dictionary of the rows of one replica: `inputs` and `targets`,
                int32 `(B, T)`; `weights`, float32 `(B, T)`; `num_targets`, to
                divide the loss by; and optionally `reset` as in `score`. With
                another `loss` than the default, the data passed to `fit`.

        Returns:
            Dictionary of the metrics by name.
        """
        own = ON_TENSORFLOW and self.fit_steps
        return (own or super()).train_step(*data)

    def test_step(self, *data: dict) -> dict:
        """Evaluates a batch as in `train_step`; returns the metrics."""
        own = ON_TENSORFLOW and self.fit_steps
        return (own or super()).test_step(*data)

    def get_compile_config(self):
        """Returns the arguments of `compile`, for saving."""
        config = super().get_compile_config()
        if not config:
            return config
        serialize = keras.saving.serialize_keras_object
        config = {**config, "sampler": serialize(self.sampler)}
        if self.fit_steps is not None:
            config["loss"] = "auto"
            if ON_TENSORFLOW:
                config["jit_compile"] = self.fit_steps.jit_compile
            config["weighted_metrics"] = serialize(self.fit_steps.metrics)
        return config

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        *,
        segment_length: int | None = None,
        **kwargs,
    ) -> keras.callbacks.History:
        """Trains like `keras.Model.fit`, in the order of the text.

        Memory is reset where the data begins again, and where batches say so.
        The data begins again in every epoch unless `steps_per_epoch` is less.
        Pass all arguments after `epochs` by name.

        Args:
            x: One of
                - for a model with a `tokenizer`: a string, or a list, a tensor
                  or a dataset of strings. Each has a cold start, and segments
                  that do not fill a batch are left out.
                - `txl_keras.data.Segments`.
                - a `tf.data.Dataset`, a generator or a `keras.utils.PyDataset`
                  (read by one thread) of pairs (inputs, targets), of triples
                  with sample weights, or of dicts as in `Segments.dataset`.
                - an integer array `(N * B, T)`, see `Segments.arrays`.
            y: Integer array like `x`, the tokens that follow, if `x` is an
                array.
            batch_size: Integer `B`, if `x` is an array or text; for text 32
                by default, or the number of segments if that is less, in a
                multiple of the replicas.
            epochs, **kwargs: See `keras.Model.fit`. `validation_data` may be
                anything that `x` may be, or a tuple of arrays.
            segment_length: Integer `T`, if `x` is text; by default the memory
                length, or 128 without memory.

        Returns:
            `keras.callbacks.History`. `loss` is in nats per token.

        Raises:
            FloatingPointError: If the loss is not finite, except in float16.
            tf.errors.InvalidArgumentError: If a dataset has invalid ids, or
                batches of different shapes; the last may have fewer rows.
        """
        from txl_keras.callbacks import BackupAndRestore
        from txl_keras.callbacks import ResetMemory

        if kwargs.setdefault("shuffle", False):
            raise ValueError(
                "`shuffle` must be False, since row r of a batch continues "
                "row r of the batch before it. Received: "
                f"shuffle={kwargs['shuffle']}"
            )
        check_class_weight(kwargs.pop("class_weight", None))
        if kwargs.get("validation_split"):
            raise ValueError(
                "`validation_split` must be 0, since rows of a batch continue "
                "in the next batch. Pass `validation_data`. Received: "
                f"validation_split={kwargs['validation_split']}"
            )
        validation = kwargs.pop("validation_data", None)
        check_segment_length(segment_length, x, validation)
        starts, steps = EpochStarts(), kwargs.pop("steps_per_epoch", None)
        if validation is not None:
            kwargs |= self._validation_data(
                validation,
                kwargs.pop("validation_batch_size", None) or batch_size,
                segment_length,
                kwargs.get("validation_steps"),
            )
        parts = x, y, kwargs.pop("sample_weight", None)
        x, y, weights, batch_size = self._data(
            parts, batch_size, segment_length, steps, starts
        )
        if starts.num_steps or (
            # Keras would not tell `ResetMemory` that arrays begin again.
            isinstance(x, np.ndarray) and steps == -(-len(x) // batch_size)
        ):
            steps = None
        callbacks = keras.tree.flatten(kwargs.pop("callbacks", None) or [])
        backups = [c for c in callbacks if isinstance(c, BackupAndRestore)]
        callbacks = [c for c in callbacks if c not in backups]
        resets = []
        if self.fit_steps is None:
            self._training_memory.reset_state(batch_size or 0)
            resets = [ResetMemory()] * (steps is None)
        else:
            self.fit_steps.prepare_training(x)
            epoch = kwargs.get("initial_epoch", 0)
            for backup in backups:
                kwargs["initial_epoch"] = backup._begin(
                    self, callbacks, epoch, epochs, steps
                )
        return super().fit(
            x,
            y,
            batch_size,
            epochs,
            sample_weight=weights,
            steps_per_epoch=steps,
            callbacks=[starts, *callbacks, *resets, *backups],
            **kwargs,
        )

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        *,
        segment_length: int | None = None,
        **kwargs,
    ) -> Any:
        """Evaluates like `keras.Model.evaluate`, from a cold start.

        `x`, `y`, `batch_size` and `segment_length` are as in `fit`. In text
        every token except the first is scored; each row has a cold start. Where
        logits are computed (see `compile`), the end of a text that does not
        fill all rows is left out. `score_texts` scores a text as a whole.
        """
        # Within `fit` Keras passes its `CallbackList` and prepared data.
        callbacks = kwargs.get("callbacks")
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            check_segment_length(segment_length, x)
            parts = x, y, kwargs.pop("sample_weight", None)
            x, y, kwargs["sample_weight"], batch_size = self._data(
                parts, batch_size, segment_length, kwargs.get("steps")
            )
        self._inference_memory.reset_state()
        if self.fit_steps is not None:
            self.fit_steps.prepare("test_function", x)
        return super().evaluate(x, y, batch_size, **kwargs)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Tensor | None = None,
        class_weight: None = None,
        return_dict: bool = False,
    ) -> Any:
        """Trains like `keras.Model.train_on_batch`, with the memory so far.

        On TensorFlow, with the default loss, there is a cold start if the batch
        size differs from the last batch's. Otherwise a smaller batch
        continues the first rows. `class_weight` must be `None`: see `fit`.
        """
        check_class_weight(class_weight)
        if self.fit_steps is None:
            return super().train_on_batch(
                x, y, sample_weight, return_dict=return_dict
            )
        data = self._batch(x, y, sample_weight)
        self.fit_steps.prepare_training(data)
        if not ON_TENSORFLOW:
            self.reset_metrics()
            batch = keras.tree.map_structure(ops.convert_to_tensor, data[0])
            return super().train_on_batch(*batch, return_dict=return_dict)
        self.make_train_function()
        self.reset_metrics()
        data = self.distribute_strategy.experimental_distribute_dataset(data)
        logs = self.train_function(iter(data))
        logs = {name: float(value) for name, value in logs.items()}
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def test_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Tensor | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Evaluates like Keras's `test_on_batch`, with the memory so far."""
        if self.fit_steps is None:
            return super().test_on_batch(x, y, sample_weight, return_dict)
        data = self._batch(x, y, sample_weight)
        self.fit_steps.prepare("test_function", data)
        return super().evaluate(data, verbose=0, return_dict=return_dict)

    def _batch(self, x, y, weights):
        """Returns a dataset of one batch."""
        data = keras.utils.pack_x_y_sample_weight(x, y, weights)
        one, size = Indexed(lambda _: data, 1), self.backbone.vocabulary_size
        # On JAX an error within a step of Keras would lose the model's state.
        batch = Batches(one, size, begins_cold=False).complete(data, True)
        if ON_TENSORFLOW:
            return tf.data.Dataset.from_tensors(batch)
        return complete(Indexed(lambda _: batch, 1), size, begins_cold=False)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        *,
        segment_length: int | None = None,
        **kwargs,
    ) -> Any:
        """Predicts like `keras.Model.predict`, from a cold start.

        `x` is an array, `Segments` or a dataset; or text. For a text the result
        is an array `(P, V)` of the logits after each of its P tokens; for
        several texts, a list. Each text is one row, in segments of
        `segment_length` as in `fit`. Pass arguments after `batch_size` by name.
        """
        check_segment_length(segment_length, x)
        if is_text(x):
            if batch_size is not None:
                raise ValueError(
                    "`batch_size` must be None for text: each text is a batch "
                    f"of one row. Received: batch_size={batch_size}"
                )
            return self._predict_texts(as_data(x), segment_length, kwargs)
        x, _ = self._segments(x, None, batch_size, segment_length)
        if isinstance(x, Segments):
            (x, _), batch_size = x.arrays(), x.batch_size
        self._inference_memory.reset_state(
            min(batch_size, len(x)) if isinstance(x, np.ndarray) else 0
        )
        return super().predict(x, batch_size, **kwargs)

    def _predict_texts(self, texts, segment_length, options):
        """Predicts text after text, each from a cold start."""
        if isinstance(texts, str):
            return self._predict_texts([texts], segment_length, options)[0]
        length = segment_length or self._default_segment_length()
        logits = []
        for ids in encode_texts(self, "x", texts):
            rows = np.zeros((-(-len(ids) // length), length), np.int32)
            rows.ravel()[: len(ids)] = ids
            found = self.predict(rows, batch_size=1, **options)
            logits.append(found.reshape(-1, found.shape[-1])[: len(ids)])
        return logits

    def _segments(
        self, x, y, batch_size, segment_length=None, drop_remainder=False
    ):
        """Returns text as `Segments`, and arrays as NumPy's after checks."""
        x, y = as_data(x), as_data(y)
        if is_text(x):
            length = segment_length or self._default_segment_length()
            ids = encode_texts(self, "x", [x] if isinstance(x, str) else x)
            replicas = 1
            if ON_TENSORFLOW:
                replicas = self.distribute_strategy.num_replicas_in_sync
            x = text_segments(ids, batch_size, length, drop_remainder, replicas)
        targets = None
        if isinstance(x, np.ndarray):
            targets = self._integer_targets(y)
        check_arrays(x, targets, batch_size, self.backbone.vocabulary_size)
        return x, y

    def _data(self, data, batch_size, length, steps=None, starts=None):
        """Returns x, y, weights and the batch size for Keras's `fit`.

        With the default loss `x` is a dataset. `starts` are `EpochStarts` for
        training.
        """
        x, y, weights = data
        drops_remainder = starts is not None or self.fit_steps is None
        x, y = self._segments(x, y, batch_size, length, drops_remainder)
        is_segments = isinstance(x, Segments)
        if is_segments and batch_size not in (None, x.batch_size):
            raise ValueError(
                "`batch_size` must be None or the batch size of the "
                f"`Segments`, {x.batch_size}. Received: {batch_size}"
            )
        if is_segments and (y is not None or weights is not None):
            raise ValueError(
                "`y` and `sample_weight` must be None for text and `Segments`, "
                "which contain the targets"
            )
        if self.fit_steps is None:
            if is_segments:
                try:
                    (x, y), batch_size = x.arrays(), x.batch_size
                except ValueError as error:
                    raise ValueError(
                        "In training that computes logits (see `compile`), "
                        "`x` must be text or `Segments` of whole segments "
                        "without padding: one text, or `Segments` with "
                        f"`drop_remainder=True`. {error}"
                    ) from error
            return x, y, weights, batch_size
        starts = starts or EpochStarts()
        if is_segments:
            x, steps = starts.of_segments(x, steps), None
        elif isinstance(x, np.ndarray):
            x, y, weights = of_arrays(x, y, weights, batch_size), None, None
        elif isinstance(x, keras.utils.PyDataset):
            starts.py_dataset = x
        x = complete(
            x, self.backbone.vocabulary_size, steps, begins_cold=not is_segments
        )
        if ON_TENSORFLOW:
            self.fit_steps.check_rows(x)
        return x, y, weights, None

    def _validation_data(self, data, batch_size, length, steps):
        """Returns arguments for Keras's `fit`."""
        # A list of strings is not a pair (x, y).
        parts = (data,) if is_text(data) else data
        parts = keras.utils.unpack_x_y_sample_weight(parts)
        try:
            *parts, batch_size = self._data(parts, batch_size, length, steps)
        except ValueError as error:
            raise ValueError(
                "In `validation_data`, with `validation_batch_size` as "
                f"`batch_size`: {error}"
            ) from error
        return {
            "validation_data": keras.utils.pack_x_y_sample_weight(*parts),
            "validation_batch_size": batch_size,
        }

    def _default_segment_length(self):
        # The memory of an LSTM is one state.
        has_attention = self.backbone.has_attention
        return has_attention and self.backbone.memory_length or 128

    def export(self, filepath: PathLike, *args, **kwargs) -> None:
        """Raises an error, since all clients would share the memory.

        Raises:
            NotImplementedError: Always. Use `txl_keras.serving.export`: its
                SavedModel takes memory and returns it.
        """
        raise NotImplementedError(
            "`model.export` would write a SavedModel whose memory all clients "
            "share, so that the same call twice gives two results. Use "
            "`txl_keras.serving.export(model, folder)` on the TensorFlow "
            "backend, which takes and returns memory. Received: "
            f"filepath={filepath!r}"
        )


register("model", causal_lm=TransformerXLCausalLM)
