"""Base of the models that are trained by Keras's `fit`."""

import keras
import tensorflow as tf

from txl_keras.models.lstm_backbone import LSTMBackbone
from txl_keras.models.preset_model import BackboneModel
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone


class TokenModel(BackboneModel):
    """Base of the models whose inputs, and default targets, are integers."""

    def __init__(self, backbone, tokenizer=None, **kwargs):
        if not isinstance(backbone, (TransformerXLBackbone, LSTMBackbone)):
            raise ValueError(
                "`backbone` must be a TransformerXLBackbone or an "
                f"LSTMBackbone. Received: backbone={type(backbone).__name__}"
            )
        if backbone.vocabulary_size is None or backbone.stateful:
            raise ValueError(
                "`backbone` must have a `vocabulary_size` and be created "
                "without `stateful`, because this model reads token ids and "
                "holds the memory itself. Received: vocabulary_size="
                f"{backbone.vocabulary_size}, stateful={backbone.stateful}"
            )
        super().__init__(backbone, tokenizer, **kwargs)

    def compile_from_config(self, config):
        """Compiles a loaded model as it was compiled when it was saved."""
        # Keras requires this of every model that overrides `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def _has_default_loss(self):
        return isinstance(self.loss, keras.losses.SparseCategoricalCrossentropy)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Under a strategy Keras would trace `call` to build the optimizer and
        # the metrics, which `FitSteps` does itself.
        if getattr(self, "fit_steps", None) is None:
            super()._maybe_symbolic_build(iterator, data_batch)

    def _symbolic_build(self, iterator=None, data_batch=None):
        # Under a strategy Keras builds loss and metrics with the mean of the
        # replicas' batches, and the mean of integers is of floats.
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data_batch)
        x = _as_integers(x)
        y = _as_integers(y) if self._has_default_loss() else y
        super()._symbolic_build(data_batch=(x, y, weights))


def _as_integers(batch):
    return tf.nest.map_structure(lambda part: tf.cast(part, tf.int32), batch)
