"""Layers inside of a layer, with its dtype policy and initializer."""

import keras


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
    return keras.layers.EinsumDense(
        equation,
        output_shape=output_shape or [None] * (rank - 3) + heads,
        # A copy: one initializer object gives the same numbers each time.
        kernel_initializer=layer.kernel_initializer.clone(),
        dtype=layer.dtype_policy,
        name=name,
    )


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
    return keras.layers.LayerNormalization(
        epsilon=layer.layer_norm_epsilon, dtype=layer.dtype_policy, name=name
    )
