"""Dropout with one seed per row of the batch."""

import keras
import numpy as np
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_dropout
from txl_keras.checks import check_shape
from txl_keras.layers.compute.dropout import SEED_DTYPE
from txl_keras.layers.compute.dropout import keep_mask
from txl_keras.layers.compute.target import fused
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.types import Tensor


@keras.saving.register_keras_serializable(package="txl_keras")
class RowDropout(ConfiguredLayer):
    """Drops elements with one seed per row.

    The mask of a row depends only on the row's seed and the position inside
    the row. So the same units are dropped when a batch is split over replicas,
    when a run is resumed, and with or without XLA. TensorFlow's counter-based
    generators do not guarantee this: their numbers differ under XLA, and one
    generator per replica gives every replica the same mask.

    Args:
        rate: Float in `[0, 1)`, the fraction of units to drop.
        seed: Optional integer, seed for the row seeds that a call draws if it
            has no `dropout_seed`.

    Call arguments:
        inputs: Tensor of shape `(B, ...)`.
        training: Boolean. Dropout is applied only if it is true.
        dropout_seed: Optional uint32 tensor of shape `(B,)`, one seed per row.
            By default new seeds are drawn in every call.

    Returns:
        Tensor of the shape and dtype of `inputs`; kept units are scaled by
        `1 / (1 - rate)`.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import RowDropout

    layer = RowDropout(0.5)
    seeds = np.array([3, 4], "uint32")
    dropped = layer(np.ones((2, 8)), training=True, dropout_seed=seeds)
    ```
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.rate = check_dropout("rate", rate)
        self.seed = seed
        self.supports_masking = True
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs, training=None, dropout_seed=None):
        if not training or self.rate == 0:
            return inputs
        seeds = self.row_seeds(ops.shape(inputs)[0], dropout_seed)

        def drop(x):
            return _drop(x, seeds, self.rate)

        if not ON_TENSORFLOW:
            return drop(inputs)
        # The gradient recomputes the mask, so that it need not be stored.
        outputs = tf.custom_gradient(lambda x: (drop(x), drop))(inputs)
        return tf.ensure_shape(outputs, inputs.shape)

    def row_seeds(
        self, batch_size: int, dropout_seed: Tensor | None = None
    ) -> Tensor:
        """Returns the row seeds of a call; draws them if none are given.

        Args:
            batch_size: Integer `B`.
            dropout_seed: Optional uint32 tensor of shape `(B,)`.

        Returns:
            uint32 tensor of shape `(B,)`.
        """
        if dropout_seed is None:
            return draw_seeds(self.seed_generator, batch_size)
        check_shape("dropout_seed", dropout_seed, (batch_size,))
        return ops.cast(dropout_seed, SEED_DTYPE)

    def compute_output_shape(self, input_shape):
        return input_shape


@fused
def _drop(inputs, seeds, rate):
    _, *sizes = ops.shape(inputs)
    keep = keep_mask(rate, seeds, sizes, [*map(ops.arange, sizes)])
    scale = ops.cast(1 / (1 - rate), inputs.dtype)
    return ops.where(keep, inputs * scale, 0)


def draw_seeds(generator, *shape):
    """Draws uint32 seeds from a `keras.random.SeedGenerator`."""
    most = np.iinfo(np.int32).max
    seeds = keras.random.randint(shape, 0, most, seed=generator)
    return ops.cast(seeds, SEED_DTYPE)
