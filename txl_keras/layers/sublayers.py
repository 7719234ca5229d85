"""Sublayers that share the dtype policy and initializer of their owner."""

import math

import keras
from keras import ops

from txl_keras.backend import tf
from txl_keras.checks import check_dropout
from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.layers.compute import target
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.target import fused
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.layers.config import inherited
from txl_keras.layers.config import part_of
from txl_keras.layers.row_dropout import RowDropout

LORA_MATRICES = ("lora_kernel_a", "lora_kernel_b")


def sublayer(owner, layer_class, *args, **kwargs):
    """Creates a layer with the initializer and the dtype of its owner."""
    return layer_class(
        *args,
        # A clone, because one initializer object repeats its values.
        kernel_initializer=owner.kernel_initializer.clone(),
        **inherited(owner),
        **kwargs,
    )


class _QuantizedLikeItsBase:
    """Lets a subclass of a Keras layer be quantized."""

    # Keras refuses to quantize subclasses, because it would skip their `call`.

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantizes the kernel like the Keras layer."""
        super().quantize(mode, type_check=False, config=config)


def _matmul(x, kernel, num_axes=1):
    """Sums products over the last axes of `x` and the first of a kernel."""
    sizes, summed = [*x.shape[:-num_axes]], math.prod(x.shape[-num_axes:])
    if sizes.count(None) != 1 or 0 in sizes:
        return ops.tensordot(x, kernel, num_axes)
    # Here `ops.tensordot` would compute every size in the graph.
    sizes[sizes.index(None)] = -1
    product = ops.matmul(
        ops.reshape(x, (-1, summed)), ops.reshape(kernel, (summed, -1))
    )
    return ops.reshape(product, (*sizes, *kernel.shape[num_axes:]))


@keras.saving.register_keras_serializable(package="txl_keras")
class HeadsDense(_QuantizedLikeItsBase, keras.layers.EinsumDense):
    """Computes a Keras `EinsumDense` as one matmul on CPUs.

    There TensorFlow's einsum is a batch of small matmuls, and sums up their
    gradients in a separate pass. An unknown device is treated as a CPU.
    """

    def call(self, inputs, training=None):
        axes, kernel_axes = self.equation.split("->")[0].split(",")
        summed = "".join(axis for axis in axes if axis in kernel_axes)
        are_adjacent = axes.endswith(summed) and kernel_axes.startswith(summed)
        may_be_cpu = target.current().device in ("cpu", None)
        if not (may_be_cpu and are_adjacent):
            return super().call(inputs)
        return _matmul(inputs, self.kernel, len(summed))


@keras.saving.register_keras_serializable(package="txl_keras")
class Dense(_QuantizedLikeItsBase, keras.layers.Dense):
    """Computes a Keras `Dense` with an exact bias gradient in bfloat16.

    Keras adds the bias by `tf.nn.bias_add`. On CPUs TensorFlow sums up its
    gradient in bfloat16, which is 5% off after 2,000 rows.
    """

    def call(self, inputs, training=None):
        outputs = _matmul(inputs, self.kernel)
        is_relu = self.activation is keras.activations.relu
        if is_relu and target.current().in_parts:
            bias = tf.convert_to_tensor(self.bias)
            return tf.custom_gradient(_biased_relu)(outputs, bias)
        return self.activation(outputs + ops.convert_to_tensor(self.bias))


def _biased_relu(x, bias):
    """Returns `relu(x + bias)` with its gradient; both are fused."""
    output = _add_and_rectify(x, bias)

    def gradient(output_gradient):
        return _rectify_gradient(output, output_gradient, bias)

    return output, gradient


@fused
def _add_and_rectify(x, bias):
    return tf.nn.relu(x + bias)


@fused
def _rectify_gradient(output, output_gradient, bias):
    """Computes the gradients of `x` and of the bias."""
    gradient = tf.where(output > 0, output_gradient, 0)
    rows = list(range(output.shape.rank - 1))
    total = tf.reduce_sum(tf.cast(gradient, tf.float32), axis=rows)
    return gradient, tf.cast(total, bias.dtype)


def project_heads(states, *layers):
    """Projects `(B, S, D)` with each `HeadsDense` to `(N, B, S, H)`."""
    # Heads are first, so that position scores, which have no batch axis, take
    # one matmul per head.
    are_quantized = any(layer.quantization_mode for layer in layers)
    if are_quantized or target.current().device is None:
        # Only the layer knows the scales of a quantized kernel, and it takes
        # one matmul if the device may be a CPU.
        return [ops.transpose(layer(states), (2, 0, 1, 3)) for layer in layers]
    kernels = [ops.cast(layer.kernel, states.dtype) for layer in layers]
    if target.current().is_cpu:
        # One matmul with the concatenated kernels.
        projected = tf.tensordot(states, tf.concat(kernels, axis=1), 1)
        projected = tf.transpose(projected, (2, 0, 1, 3))
        return tf.split(projected, len(layers), axis=0)
    return [ops.einsum("bsd,dnh->nbsh", states, kernel) for kernel in kernels]


class Block(ConfiguredLayer):
    """Base class of blocks: attention, feed-forward network and their norms."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.head_dim = check_integer("head_dim", head_dim, 1)
        self.intermediate_dim = check_integer(
            "intermediate_dim", intermediate_dim, 1
        )
        self.dropout = check_dropout("dropout", dropout)
        self.attention_dropout = check_dropout(
            "attention_dropout", attention_dropout
        )
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _add_sublayers(self, attention, activation):
        self.attention = part_of(
            self,
            attention,
            key_dim=self.head_dim,
            dropout=self.attention_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            seed=None,
            name="attention",
        )
        self._attention_norm = layer_norm(self, "attention_norm")
        self._feed_forward_norm = layer_norm(self, "feed_forward_norm")
        self._intermediate_dense = sublayer(
            self,
            Dense,
            self.intermediate_dim,
            activation,
            name="feed_forward_intermediate",
        )
        self._output_dense = None  # created in `build`, where D is known
        self._dropout = RowDropout(
            self.dropout, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, inputs_shape):
        self._output_dense = sublayer(
            self, Dense, inputs_shape[-1], name="feed_forward_output"
        )
        for layer in (
            self.attention,
            self._attention_norm,
            self._feed_forward_norm,
            self._intermediate_dense,
        ):
            layer.build(inputs_shape)
        self._output_dense.build((*inputs_shape[:-1], self.intermediate_dim))

    def _feed_forward(self, x, training, dropout_seed, first_site):
        x = self._intermediate_dense(x)
        x = self._drop(x, training, dropout_seed, first_site)
        x = self._output_dense(x)
        return self._drop(x, training, dropout_seed, first_site + 1)

    def _post_norm(self, x, attended, training, dropout_seed, first_site):
        """Computes a post-norm block from the output of attention."""
        attended = self._drop(attended, training, dropout_seed, first_site)
        x = _normalized_sum(self._attention_norm, x, attended)
        update = self._feed_forward(x, training, dropout_seed, first_site + 1)
        return _normalized_sum(self._feed_forward_norm, x, update)

    def _drop(self, x, training, dropout_seed, site):
        seed = fold_in(dropout_seed, site)
        return self._dropout(x, training=training, dropout_seed=seed)


def layer_norm(layer, name):
    """Creates a layer norm sublayer with the owner's epsilon and dtype."""
    check_number("layer_norm_epsilon", layer.layer_norm_epsilon, 0)
    return keras.layers.LayerNormalization(
        epsilon=layer.layer_norm_epsilon, name=name, **inherited(layer)
    )


def _normalized_sum(norm, x, residual):
    """Computes `norm(x + residual)`, fused on CPUs."""
    if not target.current().is_cpu:
        return norm(x + residual)

    @tf.custom_gradient
    def normalized(x, residual, gamma, beta):
        output, total, mean, inverse_deviation = _normalize(
            x, residual, gamma, beta, norm.epsilon
        )

        def gradient(output_gradient):
            sum_gradient, *weight_gradients = _normalize_gradient(
                total, mean, inverse_deviation, gamma, output_gradient
            )
            return sum_gradient, sum_gradient, *weight_gradients

        return output, gradient

    # Variables are read here, outside of the custom gradient, so that the tape
    # records them.
    gamma, beta = (tf.cast(x, tf.float32) for x in (norm.gamma, norm.beta))
    return normalized(x, residual, gamma, beta)


@fused
def _normalize(x, residual, gamma, beta, epsilon):
    """Returns the layer norm, the sum, and its mean and 1 / deviation."""
    total = x + residual
    sum_float32 = tf.cast(total, tf.float32)
    mean = _mean(sum_float32)
    variance = _mean(tf.square(sum_float32 - mean))
    inverse_deviation = tf.math.rsqrt(variance + epsilon)
    output = (sum_float32 - mean) * inverse_deviation * gamma + beta
    return tf.cast(output, x.dtype), total, mean, inverse_deviation


@fused
def _normalize_gradient(total, mean, inverse_deviation, gamma, output_gradient):
    """Computes the gradients of the sum, of gamma and of beta."""
    gradient = tf.cast(output_gradient, tf.float32)
    normalized = (tf.cast(total, tf.float32) - mean) * inverse_deviation
    scaled = gradient * gamma
    sum_gradient = (
        scaled - _mean(scaled) - normalized * _mean(scaled * normalized)
    )
    rows = list(range(total.shape.rank - 1))
    return (
        tf.cast(sum_gradient * inverse_deviation, total.dtype),
        tf.reduce_sum(gradient * normalized, axis=rows),
        tf.reduce_sum(gradient, axis=rows),
    )


def _mean(x):
    """Computes the mean over the last axis, which is kept with size 1."""
    # XLA sums up rows on a CPU in two passes, 20% slower than this matmul.
    size = x.shape[-1]
    return tf.matmul(x, tf.fill([size, 1], 1 / size))
