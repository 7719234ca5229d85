"""The training step.

Letters: `B` batch over all replicas, `T` segment.
"""

import functools

import numpy as np
import tensorflow as tf

from txl_keras.data.segments import replica_batch_size
from txl_keras.layers.row_dropout import fold_in
from txl_keras.training.strategy import compile_replica_function
from txl_keras.training.strategy import host_loop


class Trainer:
    """Trains a language model, one replica or many alike.

    A step, on every replica: read memory, forward and backward, write memory
    (all compiled by XLA); then sum the gradients over replicas, clip them by
    their global norm, and apply them. The loss is the mean over the targets of
    the global batch, so the number of replicas changes nothing but the speed.

    Args:
        model: `TransformerXLCausalLM` made in the scope of `strategy`.
        optimizer: An optimizer of `txl_keras.training.optimizers`, made in
            the scope of `strategy`.
        strategy: The `tf.distribute.Strategy`.
        batch_size: Integer `B`.
        clip_norm: Optional float, the largest global norm of the gradient.
        seed: Integer, of the dropout masks.
        segment_lengths: Optional tuple of integers, `Segments.segment_lengths`
            of the data; needed where they vary. Each is compiled.

    Raises:
        ValueError: If `batch_size` does not divide over the replicas, or
            `clip_norm` is not positive.
    """

    def __init__(
        self,
        model,
        optimizer,
        strategy,
        batch_size,
        clip_norm=None,
        seed=0,
        segment_lengths=None,
    ):
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(
                "`clip_norm` must be greater than 0 or None. "
                f"Received: clip_norm={clip_norm}"
            )
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self.batch_size = batch_size
        self.clip_norm = clip_norm
        self.seed = seed
        self.segment_lengths = segment_lengths
        self._rows = replica_batch_size(batch_size, strategy)
        with strategy.scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.memory = model.backbone.memory_stack(self._rows)
            optimizer.build(model.trainable_variables)
        self._compiled_gradients = compile_replica_function(
            self._gradients, strategy
        )
        step = self._step
        if strategy.num_replicas_in_sync == 1:
            # XLA has no collectives on CPU and GPU: with several replicas
            # only what lies before the sum of gradients is compiled.
            step = compile_replica_function(self._step, strategy)
        self._run = host_loop(strategy, step, ("loss", "gradient_norm"))

    def train(self, iterator, num_steps):
        """Runs steps, without a word from the host in between.

        Args:
            iterator: Iterator over a distributed dataset of `Segments`, at
                `self.step`.
            num_steps: Integer.

        Returns:
            Dictionary of NumPy vectors of `num_steps`: `loss`, nats a token,
            and `gradient_norm`, before clipping.

        Raises:
            FloatingPointError: If a loss or gradient is not finite.
        """
        first = int(self.step.numpy())
        results = self._run(iterator, tf.constant(num_steps))
        results = {name: value.numpy() for name, value in results.items()}
        for name, values in results.items():
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                raise FloatingPointError(
                    f"{name} is {values[bad[0]]} at step {first + bad[0] + 1}."
                )
        return results

    def _step(self, batch):
        """One step of one replica; returns its shares of the results."""
        context = tf.distribute.get_replica_context()
        first_row = context.replica_id_in_sync_group * self._rows
        loss, gradients = self._compiled_gradients(batch, self.step, first_row)
        gradients = context.all_reduce("SUM", gradients)
        norm = tf.linalg.global_norm(gradients)
        if self.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(
                gradients, self.clip_norm, use_norm=norm
            )
        self.optimizer.apply(gradients, self.model.trainable_variables)
        self.step.assign_add(1)
        replicas = self.strategy.num_replicas_in_sync
        return {"loss": loss, "gradient_norm": norm / replicas}

    def _gradients(self, batch, step, first_row):
        """This replica's part of the loss and of its gradient."""
        arguments = batch, self.memory.read(), step, first_row
        if "bucket" in batch:
            loss, memory, gradients = tf.switch_case(
                batch["bucket"],
                [
                    functools.partial(self._of_length, length, *arguments)
                    for length in self.segment_lengths
                ],
            )
        else:
            loss, memory, gradients = self._of_length(None, *arguments)
        self.memory.write(memory)
        return loss, gradients

    def _of_length(self, length, batch, memory, step, first_row):
        """Loss, new memory and gradient of the first tokens of a batch."""
        with tf.GradientTape() as tape:
            nll, memory = self.model.score(
                batch["inputs"][:, :length],
                batch["targets"][:, :length],
                memory=memory,
                reset=batch["reset"],
                training=True,
                dropout_seed=fold_in(tf.cast(self.seed, tf.uint32), step),
                first_row=first_row,
            )
            weights = batch["weights"][:, :length]
            loss = tf.reduce_sum(nll * weights) / batch["num_targets"]
        gradients = tape.gradient(loss, self.model.trainable_variables)
        # Sparse ones have a row twice where a token comes twice: their norm
        # would be another.
        return loss, memory, [tf.convert_to_tensor(g) for g in gradients]
