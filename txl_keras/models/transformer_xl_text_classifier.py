"""A Transformer-XL classifier of whole texts.

More letters: `W` tokens of the longest text, `C` classes.
"""

import contextlib
import functools
from typing import Any

import keras
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.extending import register
from txl_keras.keras_internals import build_and_stay_open
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.row_dropout import draw_seeds
from txl_keras.models.lstm_backbone import LSTMBackbone
from txl_keras.models.preset_model import BackboneModel
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone

POOLINGS = ("last", "mean")


@keras.saving.register_keras_serializable(package="txl_keras")
class TransformerXLTextClassifier(BackboneModel):
    """Classifies texts of any length.

    The model reads a text segment by segment, each with the memory of the
    segments before it. No text is truncated, and the cost is linear in its
    length. Hidden states of the text's tokens are pooled, and one dense layer
    maps them to logits.

    Texts of a batch are padded on the right. Padding does not change the
    logits: no token of the text attends to padding, and padding is not pooled.

    No gradient flows through memory (section 3.2 of the paper). So the backbone
    learns from every segment with `pooling="mean"`, but with `"last"` only from
    the segment in which a text ends.

    Args:
        backbone: A `TransformerXLBackbone` with relative positions, or an
            `LSTMBackbone`, for example the `backbone` of a language model. It
            is shared, not copied.
        num_classes: Integer `C`, at least 2.
        segment_length: Integer `T`.
        pooling: `"last"`: the hidden state of a text's last token, which
            depends on as much text as the backbone remembers. `"mean"`: the
            mean over all tokens of a text, at any memory length.
        tokenizer: Optional tokenizer of `txl_keras.data`. It is saved with the
            model.

    Call arguments:
        inputs: Integer tensor of ids `(B, W)`, if there is no padding. For
            texts of different lengths, a pair of ids `(B, W)` and integers
            `(B,)`, the number of tokens of each text, 1 to W; or a dictionary
            of both, `token_ids` and `lengths`, as returned by
            `txl_keras.data.pad_texts`. Ids after the end of a text are ignored.
        training: Boolean, for dropout.

    Returns:
        Logits, float32 tensor of shape `(B, C)`. A row is NaN if its length is
        not in `[1, W]` and the call is compiled by XLA, which cannot raise
        errors.

    Raises:
        tf.errors.InvalidArgumentError: If a length is not in `[1, W]`, in a
            `tf.function` and in a `tf.data.Dataset`.

    Example:

    ```python
    import numpy as np
    from txl_keras.data import pad_texts
    from txl_keras.models import TransformerXLTextClassifier

    model = TransformerXLTextClassifier.from_preset(
        "quickstart", num_classes=2, num_layers=1, segment_length=8
    )
    texts = [b"good", b"bad, and too long for a segment", b"very good"]
    x = pad_texts([np.frombuffer(text, "uint8") for text in texts])
    model.compile("adam")
    model.fit(x, np.array([1, 0, 1]), epochs=2, verbose=0)
    logits = model.predict(x, verbose=0)  # (3, 2)
    ```

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.2, for
        memory; [Radford et al., 2018](https://openai.com/research/language-unsupervised),
        section 3.2, for the dense layer on the last state.
    """

    backbone_classes = (TransformerXLBackbone, LSTMBackbone)
    takes_new_head = True

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        segment_length: int = 128,
        pooling: str = "last",
        tokenizer: Any = None,
        **kwargs,
    ):
        super().__init__(backbone, tokenizer, **kwargs)
        backbone.check_takes_padding()
        check_one_of("pooling", pooling, POOLINGS)
        self.num_classes = check_integer("num_classes", num_classes, 2)
        self.segment_length = check_integer("segment_length", segment_length, 1)
        self.pooling = pooling
        self.logits = keras.layers.Dense(
            num_classes,
            kernel_initializer=backbone.kernel_initializer(),
            dtype="float32",
            name="logits",
        )
        self._seed_generator = keras.random.SeedGenerator()
        # XLA would compile TensorFlow's loop again for every W, which takes
        # longer than it saves; and the loop's gradient needs a fixed batch
        # size.
        self.supports_jit = not ON_TENSORFLOW
        build_and_stay_open(self)

    def build(self, inputs_shape):
        self.logits.build((None, self.backbone.hidden_dim))

    def call(self, inputs, training=None):
        token_ids, lengths = _unpack(inputs)
        width = ops.shape(token_ids)[1]
        lengths = check_token_ids("lengths", lengths, width + 1, first=1)
        lengths = ops.cast(lengths, "int32")
        token_ids = ops.convert_to_tensor(token_ids)
        is_text = ops.arange(width) < lengths[:, None]
        # Checked here, too: in a scan of JAX there are no values to check.
        token_ids = check_token_ids(
            "token_ids",
            ops.where(is_text, token_ids, 0),
            self.backbone.vocabulary_size,
        )
        if self.pooling == "last":
            weights = ops.one_hot(lengths - 1, width)
        else:
            count = ops.cast(ops.maximum(lengths, 1)[:, None], "float32")
            weights = ops.cast(is_text, "float32") / count
        logits = self.logits(self._pool(token_ids, is_text, weights, training))
        is_valid = (lengths >= 1) & (lengths <= width)
        return ops.where(is_valid[:, None], logits, float("nan"))

    def _pool(self, token_ids, is_text, weights, training):
        """Computes the weighted sum of all hidden states, float32 `(B, D)`."""
        segments = self._segments(token_ids)
        # Padding is at the end, so without look-ahead it is not attended to.
        looks_ahead = self.backbone.look_ahead > 0
        masks = self._segments(is_text) if looks_ahead else None
        weights = self._segments(weights)
        seed = draw_seeds(self._seed_generator) if training else None
        batch_size = ops.shape(token_ids)[0]

        collecting = contextlib.nullcontext
        trains_auxiliary = training and bool(self.backbone.auxiliary_variables)
        if ON_TENSORFLOW and trains_auxiliary:
            # Losses of layers must leave the loop as values.
            collecting = functools.partial(
                keras.StatelessScope, collect_losses=True
            )

        def read(number, memory, pooled, loss):
            masked = {"mask": masks[number]} if looks_ahead else {}
            with collecting() as scope:
                hidden, memory = self.backbone(
                    segments[number],
                    memory=memory,
                    training=training,
                    dropout_seed=fold_in(seed, number),
                    **masked,
                )
            hidden = ops.cast(hidden, "float32")
            segment = ops.einsum("bt,btd->bd", weights[number], hidden)
            loss = sum(scope.losses, loss) if scope else loss
            return number + 1, memory, pooled + segment, loss

        memory = self.backbone.initial_memory(batch_size)
        pooled = ops.zeros((batch_size, self.backbone.hidden_dim))
        state = memory, pooled, ops.zeros(())
        if not ON_TENSORFLOW:  # JAX has no gradient of `while_loop`
            (_, pooled, _), _ = ops.scan(
                lambda state, number: (read(number, *state)[1:], None),
                state,
                ops.arange(segments.shape[0]),
            )
            return pooled

        def read_until(stop, state):
            return tf.while_loop(lambda number, *_: number < stop, read, state)

        first, state = tf.constant(0), (tf.constant(0), *state)
        if training and self.pooling == "last":
            # No gradient flows into segments before the first in which a text
            # ends. Without a backward pass they cost a third.
            is_pooled = tf.reduce_any(weights > 0, axis=(1, 2))
            first = tf.argmax(is_pooled, output_type=tf.int32)
            state = read_until(first, state)
            state = tf.nest.map_structure(tf.stop_gradient, state)
            state = *state[:-1], tf.zeros(())
        number, _, pooled, loss = read_until(tf.shape(segments)[0], state)
        if trains_auxiliary:
            # The mean over the segments that are trained on.
            self.add_loss(loss / tf.cast(number - first, loss.dtype))
        return pooled

    def _segments(self, x):
        """Cuts `(B, W)` into segments `(segments, B, T)`, the last padded."""
        batch_size, width = ops.shape(x)
        padding = [[0, 0], [0, -width % self.segment_length]]
        x = tf.pad(x, padding) if ON_TENSORFLOW else ops.pad(x, padding)
        x = ops.reshape(x, (batch_size, -1, self.segment_length))
        return ops.transpose(x, (1, 0, 2))

    def compile(
        self, optimizer: Any = "adam", loss: Any = "auto", **kwargs
    ) -> None:
        """Compiles with the loss and the metrics of a classifier.

        The default loss is the cross-entropy of integer labels `(B,)` in nats,
        and the default metric is accuracy. With another `loss`, only the
        metrics that are passed are reported. See `keras.Model.compile`.
        """
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            kwargs.setdefault("metrics", ["accuracy"])
        super().compile(optimizer, loss, **kwargs)


def _unpack(inputs):
    """Returns ids `(B, W)` and lengths `(B,)` for any kind of input."""
    if isinstance(inputs, dict):
        if inputs.keys() != {"token_ids", "lengths"}:
            raise ValueError(
                "`inputs` must have the keys 'token_ids' and 'lengths', like "
                f"those of `pad_texts`. Received: {[*inputs]}"
            )
        token_ids, lengths = inputs["token_ids"], inputs["lengths"]
    elif isinstance(inputs, (tuple, list)):
        token_ids, lengths = inputs
    else:
        check_shape("token_ids", inputs, (None, None))
        batch_size, width = ops.shape(inputs)
        token_ids, lengths = inputs, ops.full((batch_size,), width, "int32")
    check_shape("token_ids", token_ids, (None, None))
    check_shape("lengths", lengths, (token_ids.shape[0],))
    return token_ids, lengths


register("model", text_classifier=TransformerXLTextClassifier)
