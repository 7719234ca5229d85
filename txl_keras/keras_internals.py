"""Uses undocumented parts of Keras, where no public part is available.

Keras may change these parts; setup.py admits the versions that were tested.
"""

import contextlib

import keras
from keras.src.backend import get_keras_mask  # noqa: F401
from keras.src.backend import set_keras_mask  # noqa: F401
from keras.src.backend.common import symbolic_scope  # noqa: F401

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import ON_TORCH
from txl_keras.backend import tf


def layers_of(model):
    """Returns a model and all layers inside of it, at any depth."""
    # `model.layers` only has the outermost layers.
    return list(model._flatten_layers())


def build_and_stay_open(model):
    """Builds a model in its constructor; a subclass may add layers after it."""
    model.build((None, None))
    # Keras does not accept layers after a model is built.
    model._tracker.unlock()


def scope_of(model):
    """Returns the context in which variables of a model are created."""
    strategy = getattr(model, "distribute_strategy", None)  # on TensorFlow
    return strategy.scope() if strategy else contextlib.nullcontext()


def note_weights(model):
    """Registers weights that a PyTorch model's layers got later."""
    # Otherwise their gradients would never be set to zero.
    if ON_TORCH:
        model._track_variables()


def make_quantized(layer, mode, config):
    """Replaces a layer's kernel by the zeros of a quantized kernel."""
    # The layer's `quantize` also computes values. A graph, and a layer that is
    # about to load values from a file, need none.
    name, shape = mode, layer.kernel.shape
    if mode == "int4":
        name += f"/{getattr(config, 'block_size', None) or -1}"
    layer.quantization_config = config
    layer._tracker.unlock()
    if mode != "float8":
        del layer._kernel
    layer.quantized_build(shape, mode, config)
    layer._tracker.lock()
    layer.dtype_policy = f"{name}_from_{layer.dtype_policy.name}"


def shapes_alone(build):
    """Calls `build` with tensors that have shapes but no values."""
    if ON_TENSORFLOW:
        with tf.Graph().as_default():
            return build()
    if ON_TORCH:
        with keras.device("meta"):
            return build()
    import jax

    built = []
    jax.eval_shape(lambda: built.append(build()))
    return built[0]


def is_on_cpu(tensor):
    """Returns whether a tensor of JAX or PyTorch is on a CPU."""
    if ON_TORCH:
        return tensor.device.type == "cpu"
    import jax

    return jax.default_backend() == "cpu"


class _AnyRows(tuple):
    """Compares equal to the shapes of a variable with other rows."""

    # Keras compares the shapes of state and variable at each trace of a step.
    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other):
        return self[1:] == tuple(other)[1:]

    def __ne__(self, other):
        return not self == other


class GrowingVariable(keras.Variable):
    """Lets a variable of JAX or PyTorch have any number of rows."""

    # A variable of TensorFlow can be created with any number of rows.
    grows = False  # until it is set

    @property
    def shape(self):
        if not self.grows:
            return self._shape
        return _AnyRows((None, *self._shape[1:]))

    def assign(self, value):
        # Keras traces on PyTorch's `meta` device, then perhaps on another.
        if ON_TORCH and keras.ops.is_tensor(value) and value.is_meta:
            return value
        return super().assign(value)

    def _direct_assign(self, value):
        if ON_TORCH:
            # In place it would change values that were read before.
            self.value.data = value.detach()
        else:
            # The next step of JAX deletes its argument.
            self.take(keras.ops.copy(value))

    def take(self, value):
        """Assigns a value of JAX that nothing else refers to."""
        distribution = keras.distribution.distribution()
        if distribution is not None:
            # Devices hold the rows of their data, unless these do not divide.
            layout = distribution.get_data_layout(value.shape)
            divides = value.shape[0] % layout.device_mesh.devices.size == 0
            self._layout = layout if divides else None
        super()._direct_assign(value)

    def read_value(self):
        """Returns the value, which later steps neither change nor delete."""
        if ON_TORCH:
            return self.value.detach()
        return keras.ops.copy(self.value)


def num_batches(optimizer):
    """Returns the variable that counts batches; `iterations` are updates."""
    return optimizer._iterations


def gradient_sums(optimizer, variables):
    """Returns the sums for `gradient_accumulation_steps` of some weights."""
    sums = optimizer._accumulated_gradients
    return [sums[optimizer._get_variable_index(v)] for v in variables]


class ModelAsLayer:
    """Lets a model be a layer of another model that is exported."""

    # For each model inside of the exported model, TensorFlow would trace the
    # signature that Keras guesses, which takes floats.
    _default_save_signature = None


class IntegerBatches:
    """Lets a model with integer inputs be built under a strategy."""

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Under a strategy Keras would trace `call` to build the optimizer and
        # the metrics, which exist before the first step of `FitSteps`.
        if getattr(self, "fit_steps", None) is not None:
            return
        if iterator is not None and self._distribute_strategy is not None:
            # Keras would take the mean over replicas: floats, or an error.
            _, _, batches = next(iter(iterator))
            values_of = self.distribute_strategy.experimental_local_results
            data_batch = keras.tree.map_structure(
                lambda x: values_of(x)[0], next(batches)
            )
        super()._maybe_symbolic_build(data_batch=data_batch)

    def _symbolic_build(self, iterator=None, data_batch=None):
        if not ON_TENSORFLOW:
            note_weights(self)
            # On PyTorch, Keras looks only after this.
            self._assert_compile_called("evaluate")
            if getattr(self, "fit_steps", None) is not None:
                if self.optimizer is not None and not self.optimizer.built:
                    self.optimizer.build(self.trainable_variables)
                return
        super()._symbolic_build(iterator, data_batch)


class MatrixMuon(keras.optimizers.Muon):
    """Lets a subclass choose and update the variables that are matrices."""

    def _should_use_adamw(self, variable):
        return not self.is_matrix(variable)

    def _muon_update_step(self, gradient, variable, lr, m):
        self.update_matrix(gradient, variable, lr, m)
