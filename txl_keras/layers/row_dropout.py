"""Dropout whose mask belongs to a row of the batch, not to a device.

Letters: `B` batch.
"""

import math

import keras
import tensorflow as tf

from txl_keras.checks import check_dropout
from txl_keras.layers.fusing import fused


def fold_in(seed, data):
    """Derives a new uint32 seed from a seed and a number.

    Args:
        seed: uint32 tensor of any shape, or `None`.
        data: uint32 tensor that broadcasts with `seed`, or a Python integer.

    Returns:
        uint32 tensor, or `None` where `seed` is `None`: "draw a fresh one".
    """
    if seed is None:
        return None
    # `_mix` leaves zero where it is: without an offset, seeds and data near
    # zero would meet, as (0, 0, 1) and (1, 0, 0). 2**32 over the golden ratio.
    offset = tf.constant(0x9E3779B9, tf.uint32)
    return _mix(_mix(tf.cast(data, tf.uint32) + offset) + seed)


def _mix(x):
    """Bijective hash of uint32, by xor-shift and multiplication.

    The constants are those of `lowbias32`, found by search for low bias over
    all bits (https://nullprogram.com/blog/2018/07/31/).
    """
    x = (x ^ tf.bitwise.right_shift(x, tf.cast(16, tf.uint32))) * tf.constant(
        0x7FEB352D, tf.uint32
    )
    x = (x ^ tf.bitwise.right_shift(x, tf.cast(15, tf.uint32))) * tf.constant(
        0x846CA68B, tf.uint32
    )
    return x ^ tf.bitwise.right_shift(x, tf.cast(16, tf.uint32))


@keras.saving.register_keras_serializable(package="txl_keras")
class RowDropout(keras.layers.Layer):
    """Dropout with one seed a row.

    Each row's mask is a hash of its seed and of the position inside the row:
    nothing else. So a batch split over replicas, a resumed run and a run with
    or without XLA all drop the same units, which the counter-based generators
    of TensorFlow do not promise (they give other numbers under XLA, and a
    generator a replica gives every replica the same mask).

    Args:
        rate: Float in `[0, 1)`, the fraction of units to drop.
        seed: Optional integer for the seeds drawn where none are passed.

    Call arguments:
        inputs: Tensor of shape `(B, ...)`.
        training: Boolean. Nothing is dropped unless it is true.
        dropout_seed: Optional uint32 tensor of shape `(B,)`, one seed a row.
            By default one is drawn a row at every call.

    Returns:
        Tensor of the shape and dtype of `inputs`; kept units are scaled by
        `1 / (1 - rate)`.

    Raises:
        ValueError: If `rate` is outside `[0, 1)`.

    Example:

    ```python
    import tensorflow as tf
    from txl_keras.layers import RowDropout

    layer = RowDropout(0.5)
    seeds = tf.constant([3, 4], tf.uint32)
    dropped = layer(tf.ones((2, 8)), training=True, dropout_seed=seeds)
    ```
    """

    def __init__(self, rate, seed=None, **kwargs):
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
        seeds = self.row_seeds(tf.shape(inputs)[0], dropout_seed)

        @tf.custom_gradient
        def drop(x):
            # The gradient has the same mask: made again, it need not be kept.
            return _drop(x, seeds, self.rate), lambda y: _drop(
                y, seeds, self.rate
            )

        return tf.ensure_shape(drop(inputs), inputs.shape)

    def row_seeds(self, batch_size, dropout_seed=None):
        """Seeds of the rows of a call: those given, or freshly drawn ones.

        Args:
            batch_size: Integer `B`.
            dropout_seed: Optional uint32 tensor of shape `(B,)`.

        Returns:
            uint32 tensor of shape `(B,)`.
        """
        if dropout_seed is None:
            return self._draw(batch_size)
        return dropout_seed

    def _draw(self, batch_size):
        return tf.random.stateless_uniform(
            (batch_size,),
            seed=tf.cast(self.seed_generator.next(), tf.int32),
            minval=None,
            maxval=None,
            dtype=tf.uint32,
        )

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@fused
def _drop(inputs, seeds, rate):
    shape = tf.unstack(tf.shape(inputs))
    places = [tf.range(size) for size in shape[1:]]
    keep = is_kept(rate, seeds, shape[1:], places)
    scale = tf.cast(1 / (1 - rate), inputs.dtype)
    return tf.where(keep, inputs * scale, tf.zeros((), inputs.dtype))


def is_kept(rate, seeds, sizes, places, batch_axis=0):
    """Whether dropout keeps units.

    A row walks through the numbers below 2**32 with a start and a stride of
    its own, a step a unit, and hashes what it meets. The walk is written as a
    sum with a term an axis, each of which depends on the seeds: a tensor of
    the shape of a row would be the same in every layer, and a compiler would
    keep it in memory rather than compute it again.

    Args:
        rate: Float in `[0, 1)`, the fraction to drop.
        seeds: uint32 tensor of shape `(B,)`.
        sizes: List of integers, the shape of a row.
        places: List of integer vectors: of each axis, those to tell of.
        batch_axis: Integer, where the rows are in the result.

    Returns:
        Boolean tensor whose axes are those of `places`, with B among them.
    """
    rank = len(sizes) + 1
    seeds = tf.reshape(
        fold_in(seeds, 0), [-1 if a == batch_axis else 1 for a in range(rank)]
    )
    stride = tf.bitwise.bitwise_or(seeds, tf.constant(1, tf.uint32))
    axes = [axis for axis in range(rank) if axis != batch_axis]
    # From the first axis on, so that all sums but the last are small.
    walk = seeds
    for i, (axis, place) in enumerate(zip(axes, places, strict=True)):
        units = tf.cast(math.prod(sizes[i + 1 :]), tf.uint32)
        place = tf.reshape(
            tf.cast(place, tf.uint32),
            [-1 if other == axis else 1 for other in range(rank)],
        )
        walk = walk + stride * units * place
    return _mix(walk) >= tf.constant(int(rate * 2**32), tf.uint32)
