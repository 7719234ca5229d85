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
        jit_compile: Boolean, whether XLA may compile the layers.

    Attributes:
        bits: `BitsPerToken`, of the batches of an epoch.
        jit_compile: As given.
    """

    def __init__(self, model, jit_compile):
        self.bits = BitsPerToken()
        self.jit_compile = jit_compile
        self._model = model
        self._seed = random.getrandbits(32)
        device = "gpu" if tf.config.list_logical_devices("GPU") else "cpu"
        if isinstance(
            tf.distribute.get_strategy(), tf.distribute.TPUStrategy
        ):  # which compiles whole steps by itself
            device, jit_compile = "tpu", False
        self._compiled_gradients, self._compiled_test = (
            compile_for(
                model.backbone.target(device, training)
                if jit_compile
                else Target(device),
                function,
                jit_compile,
            )
            for function, training in (
                (self._gradients, True),
                (self._test, False),
            )
        )
        self._compiled_apply = tf.function(
            self._apply, jit_compile=jit_compile or None
        )

    def train_step(self, data):
        """Returns the metrics after one step, for `keras.Model.train_step`."""
        x, y, weights = self._unpack(data)
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        optimizer = self._model.optimizer
        stack = self._model._training_memory
        loss, nll, memory, gradients = self._in_graph(
            self._compiled_gradients, self._gradients
        )(
            x,
            y,
            weights,
            stack.read(ops.shape(x)[0]),
            fold_in(tf.constant(self._seed, tf.uint32), optimizer.iterations),
            context.replica_id_in_sync_group * ops.shape(x)[0],
            1 / replicas,
        )
        # Not in what XLA compiles, where no variable may change its size.
        stack.write(memory)
        # XLA has no collectives between the replicas of one machine.
        apply = self._apply if replicas > 1 else self._compiled_apply
        self._in_graph(apply, self._apply)(gradients)
        return self._results(loss, nll, weights)

    def test_step(self, data):
        """Returns the metrics after one batch, for `keras.Model.test_step`."""
        x, y, weights = self._unpack(data)
        stack = self._model._inference_memory
        loss, nll, memory = self._in_graph(self._compiled_test, self._test)(
            x, y, weights, stack.read(ops.shape(x)[0])
        )
        stack.write(memory)
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

    def _gradients(self, x, y, weights, memory, seed, first_row, share):
        """Returns loss, nll `(B, T)`, memory and gradients of a segment."""
        model = self._model
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            nll, memory = model.score(
                x,
                y,
                memory,
                training=True,
                dropout_seed=seed,
                first_row=first_row,
            )
            loss = _mean(nll, weights)
            target = model.optimizer.scale_loss(loss * share)
        gradients = tape.gradient(target, variables)
        # Sparse gradients have other norms: a row twice for a token twice.
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        return loss, nll, memory, gradients

    def _apply(self, gradients):
        variables = self._model.trainable_variables
        self._model.optimizer.apply(gradients, variables)

    def _test(self, x, y, weights, memory):
        nll, memory = self._model.score(x, y, memory)
        return _mean(nll, weights), nll, memory

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
