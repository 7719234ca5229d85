"""Layers inside of a layer, with its dtype policy and initializer."""

import keras
import tensorflow as tf

from txl_keras.checks import check_number
from txl_keras.layers.compute import target
from txl_keras.layers.compute.pallas import with_row_major_gradient
from txl_keras.layers.compute.target import fused


def heads_dense(layer, equation, name, output_shape=None):
    """A projection to or from heads.

    Args:
        layer: The layer that owns it, with `num_heads`, `key_dim` and
            `kernel_initializer`.
        equation, name: Of `keras.layers.EinsumDense`.
        output_shape: Of it; by default that ends with the heads.
    """
    rank = len(equation.split("->")[1])
    heads = [layer.num_heads, layer.key_dim]
    return HeadsDense(
        equation,
        output_shape=output_shape or [None] * (rank - 3) + heads,
        # A copy: one initializer object gives the same numbers each time.
        kernel_initializer=layer.kernel_initializer.clone(),
        dtype=layer.dtype_policy,
        name=name,
    )


@keras.saving.register_keras_serializable(package="txl_keras")
class HeadsDense(keras.layers.EinsumDense):
    """`keras.layers.EinsumDense`, on a CPU as one product of matrices.

    TensorFlow makes a batch of small ones of it, and their gradients are
    summed up in a pass of their own.
    """

    def call(self, inputs):
        axes, kernel_axes = self.equation.split("->")[0].split(",")
        summed = [axis for axis in axes if axis in kernel_axes]
        leads = axes.endswith("".join(summed)) and kernel_axes.startswith(
            "".join(summed)
        )
        if not (target.current().is_cpu and leads):
            return super().call(inputs)
        return tf.tensordot(inputs, self.kernel, len(summed))


def project_heads(states, *layers):
    """Projects hidden states to heads, by the kernels of several layers.

    Args:
        states: Tensor `(B, S, D)`.
        *layers: `HeadsDense` with kernels `(D, N, H)`.

    Returns:
        List of tensors `(N, B, S, H)`. Heads are first, so that a product with
        what has no batch axis, the positions, is one of a matrix a head.
    """
    kernels = [tf.cast(layer.kernel, states.dtype) for layer in layers]
    if target.current().is_cpu:
        # With kernels side by side, one product of all.
        projected = tf.tensordot(states, tf.concat(kernels, axis=1), 1)
        projected = tf.transpose(projected, (2, 0, 1, 3))
        return tf.split(projected, len(layers), axis=0)
    return [
        tf.einsum("bsd,dnh->nbsh", states, with_row_major_gradient(kernel))
        for kernel in kernels
    ]


def dense(layer, units, name, activation=None):
    """A `keras.layers.Dense` of a layer with a `kernel_initializer`."""
    return keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=layer.kernel_initializer.clone(),
        dtype=layer.dtype_policy,
        name=name,
    )


def layer_norm(layer, name):
    """A layer norm of a layer with a `layer_norm_epsilon`."""
    check_number("layer_norm_epsilon", layer.layer_norm_epsilon, 0)
    return keras.layers.LayerNormalization(
        epsilon=layer.layer_norm_epsilon, dtype=layer.dtype_policy, name=name
    )


def normalized_sum(x, residual, gamma, beta, epsilon):
    """Layer norm of `x + residual` for training, fused.

    Args:
        x, residual: Tensors `(..., D)` of one dtype.
        gamma, beta: Float32 tensors `(D,)`.
        epsilon: Float, added to the variance.

    Returns:
        Tensor of the shape and dtype of `x`.
    """

    @tf.custom_gradient
    def normalized(x, residual, gamma, beta):
        output, total, mean, inverse = _normalize(
            x, residual, gamma, beta, epsilon
        )

        def gradient(output_gradient):
            of_sum, *of_weights = _normalize_gradient(
                total, mean, inverse, gamma, output_gradient
            )
            return of_sum, of_sum, *of_weights

        return output, gradient

    return normalized(x, residual, gamma, beta)


@fused
def _normalize(x, residual, gamma, beta, epsilon):
    """The norm, the sum, and its mean and inverse deviation `(..., 1)`."""
    total = x + residual
    exact = tf.cast(total, tf.float32)
    mean = _mean(exact)
    variance = _mean(tf.square(exact - mean))
    inverse = tf.math.rsqrt(variance + epsilon)
    output = (exact - mean) * inverse * gamma + beta
    return tf.cast(output, x.dtype), total, mean, inverse


@fused
def _normalize_gradient(total, mean, inverse, gamma, output_gradient):
    """Gradients of the sum, of gamma and of beta."""
    gradient = tf.cast(output_gradient, tf.float32)
    normalized = (tf.cast(total, tf.float32) - mean) * inverse
    scaled = gradient * gamma
    of_sum = scaled - _mean(scaled) - normalized * _mean(scaled * normalized)
    rows = list(range(total.shape.rank - 1))
    return (
        tf.cast(of_sum * inverse, total.dtype),
        tf.reduce_sum(gradient * normalized, axis=rows),
        tf.reduce_sum(gradient, axis=rows),
    )


def _mean(x):
    """Of the last axis, which stays.

    As a product: XLA sums up rows on a CPU in two passes, a fifth slower.
    """
    size = x.shape[-1]
    return tf.linalg.matvec(x, tf.fill([size], 1 / size))[..., None]
