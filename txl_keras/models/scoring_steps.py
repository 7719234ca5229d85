"""The steps of Keras's `fit` and `evaluate` for a language model.

Letters: `B` batch, `T` segment.
"""

import random

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import compile_for
from txl_keras.layers.compute.target import multiplies_in_parts
from txl_keras.metrics import BitsPerToken
from txl_keras.metrics import bits_per_token


class ScoringSteps:
    """Trains and evaluates a language model without computing logits.

    The loss is the mean negative log-likelihood of `model.score`, which never
    holds a tensor `(B, T, V)`. The layers are compiled for the device, as
    `Trainer` compiles them. Dropout is a function of a seed, drawn here with
    Python's `random`, and of the optimizer's iterations.

    Args:
        model: `TransformerXLCausalLM`.

    Attributes:
        bits: `BitsPerToken`, of the batches of an epoch.
        jit_compile: Boolean, whether XLA may compile a whole step.
    """

    def __init__(self, model):
        self.bits = BitsPerToken()
        self._model = model
        self._seed = random.getrandbits(32)
        device = "gpu" if tf.config.list_logical_devices("GPU") else "cpu"
        in_parts = (
            device == "cpu"
            and model.backbone.has_parts
            and multiplies_in_parts(model.compute_dtype, training=True)
        )
        self.jit_compile = not in_parts
        self._compiled_gradients = compile_for(
            Target(device, in_parts), self._gradients
        )
        self._compiled_test = compile_for(Target(device), self._test)
        self._compiled_apply = tf.function(self._apply, jit_compile=True)

    def train_step(self, data):
        """Returns the metrics after one step, for `keras.Model.train_step`."""
        x, y, weights = self._unpack(data)
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        optimizer = self._model.optimizer
        loss, nll, gradients = self._in_graph(
            self._compiled_gradients, self._gradients
        )(
            x,
            y,
            weights,
            fold_in(tf.constant(self._seed, tf.uint32), optimizer.iterations),
            context.replica_id_in_sync_group * ops.shape(x)[0],
            1 / replicas,
        )
        # XLA has no collectives between the replicas of one machine.
        apply = self._apply if replicas > 1 else self._compiled_apply
        self._in_graph(apply, self._apply)(gradients)
        return self._results(loss, nll, weights)

    def test_step(self, data):
        """Returns the metrics after one batch, for `keras.Model.test_step`."""
        x, y, weights = self._unpack(data)
        loss, nll = self._in_graph(self._compiled_test, self._test)(
            x, y, weights
        )
        return self._results(loss, nll, weights)

    def _in_graph(self, compiled, eager):
        return eager if self._model.run_eagerly else compiled

    def _unpack(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        if y is None:
            raise ValueError(
                "`y` must be the targets of `x`, the tokens that follow. Pass "
                "both, as `Segments.arrays` returns them. Received: y=None"
            )
        y = check_token_ids("y", y, self._model.backbone.vocabulary_size)
        y = check_shape_in_graph("y", y, ops.shape(x))
        if weights is not None and weights.shape.rank == 1:
            weights = weights[:, None]
        return x, y, weights

    def _gradients(self, x, y, weights, seed, first_row, share):
        """Returns the loss, nll `(B, T)` and gradients of `share` of it."""
        model = self._model
        stack = model._training_memory
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            nll, memory = model.score(
                x,
                y,
                stack.read(ops.shape(x)[0]),
                training=True,
                dropout_seed=seed,
                first_row=first_row,
            )
            loss = _mean(nll, weights)
            target = model.optimizer.scale_loss(loss * share)
        stack.write(memory)
        gradients = tape.gradient(target, variables)
        # Sparse gradients have other norms: a row twice for a token twice.
        return loss, nll, [tf.convert_to_tensor(g) for g in gradients]

    def _apply(self, gradients):
        variables = self._model.trainable_variables
        self._model.optimizer.apply(gradients, variables)

    def _test(self, x, y, weights):
        stack = self._model._inference_memory
        memory = stack.read(ops.shape(x)[0])
        nll, memory = self._model.score(x, y, memory)
        stack.write(memory)
        return _mean(nll, weights), nll

    def _results(self, loss, nll, weights):
        self._model._loss_tracker.update_state(
            loss, sample_weight=ops.shape(nll)[0]
        )
        # What the metric computes of logits is here already.
        keras.metrics.Mean.update_state(
            self.bits, bits_per_token(nll), sample_weight=weights
        )
        return self._model.get_metrics_result()


def _mean(nll, weights):
    """Returns the mean over all targets, as `keras.losses` weight them."""
    return tf.reduce_mean(nll if weights is None else nll * weights)
