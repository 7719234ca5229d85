"""Base of the models that are trained by Keras's `fit`."""

import keras

from txl_keras.keras_internals import IntegerBatches
from txl_keras.models.lstm_backbone import LSTMBackbone
from txl_keras.models.preset_model import BackboneModel
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone


class TokenModel(IntegerBatches, BackboneModel):
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

    def has_integer_targets(self):
        """Returns whether the loss is that of integer targets."""
        return isinstance(self.loss, keras.losses.SparseCategoricalCrossentropy)
