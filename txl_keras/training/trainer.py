"""The training step.

More letters: `b` rows of one replica, while `B` counts all replicas.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_keras import keras_internals
from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import check_one_of
from txl_keras.checks import shown
from txl_keras.compilation import compile_layers
from txl_keras.compilation import device_of
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.extending import registered
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.models.fit_data import check_trainable
from txl_keras.optimizers import Muon
from txl_keras.training.strategy import host_loop
from txl_keras.training.updates import LossScale
from txl_keras.training.updates import accumulate
from txl_keras.training.updates import apply_gradients
from txl_keras.training.updates import check_supported
from txl_keras.training.updates import check_weights


class Trainer:
    """Trains a language model on one replica or several identical ones.

    In a step, every replica reads its memory, runs forward and backward, and
    writes its memory. One all-reduce sums the gradients over replicas. Then
    every replica clips them by their global norm and applies them to its own
    copy of the weights. XLA compiles the parts before and after the all-reduce,
    on some CPUs in smaller parts (see `txl_keras.layers.compute.target`). The
    loss is the mean over the targets of the global batch, so the number of
    replicas changes only the speed.

    A model with the policy `mixed_float16` is trained with a loss scale: a step
    whose summed gradient is not finite is skipped by all replicas. It counts as
    a step, but not as an update of the optimizer.

    If the backbone has `auxiliary_variables`, the `losses` that its layers add
    train only these variables. Their gradient is clipped separately.

    Batches come from `Segments` for a `TransformerXLCausalLM`, and from
    `PermutedSegments` for an `XLNetPermutationLM`. All of their entries except
    `weights` and `num_targets` are arguments of `model.score`.

    Args:
        model: `TransformerXLCausalLM` or `XLNetPermutationLM`, created in the
            scope of `strategy`.
        optimizer: An optimizer from `build_optimizer` or of Keras, created in
            the scope of `strategy`.
        strategy: The `tf.distribute.Strategy`.
        batch_size: Integer `B`.
        clip_norm: Optional float, the largest global norm of the gradient. By
            default the `global_clipnorm` of the optimizer, if it has one.
        seed: Integer, seed of the dropout masks.
        accumulate_steps: Integer, the number of micro-batches for gradient
            accumulation. The step is the same, but memory holds activations of
            fewer rows. Each micro-batch uses the memory of its own rows.
        attention: Optional string, the name of a registered attention
            implementation (see docs/extending.md), such as `"pallas"`.
        jit_compile: Boolean, whether XLA may compile the step. `None` runs it
            eagerly if its caller runs eagerly.

    Attributes:
        step: int64 `tf.Variable`, the number of steps done.
        seed: Integer, as given. If it is set, the next step uses it.

    Example:

    ```python
    import numpy as np
    from txl_keras.data import Segments
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.optimizers import build_optimizer
    from txl_keras.training import Checkpoints, Trainer, create_strategy

    strategy = create_strategy()
    with strategy.scope():
        model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
        optimizer = build_optimizer("adam", learning_rate=1e-3)
    trainer = Trainer(model, optimizer, strategy, batch_size=4, clip_norm=0.25)
    checkpoints = Checkpoints("checkpoints", trainer)
    checkpoints.restore()
    step = int(trainer.step.numpy())

    tokens = np.frombuffer(b"to be or not to be, " * 50, "uint8")
    segments = Segments(tokens, 4, 16, drop_remainder=True)
    iterator = iter(segments.distribute(strategy, first_step=step))
    losses = trainer.train(iterator, num_steps=2)["loss"]  # (2,)
    checkpoints.save()
    checkpoints.wait()
    ```
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        clip_norm: float | None = None,
        seed: int = 0,
        accumulate_steps: int = 1,
        attention: str | None = None,
        jit_compile: bool | None = True,
    ):
        check_supported(optimizer)
        refused = [
            v.path
            for v in model.trainable_variables
            if v.constraint or v.overwrite_with_gradient
        ]
        if refused:
            raise ValueError(
                "The weights of `model` must have no `constraint` and must not "
                "be those of float8. Compile the model again, and use `fit`. "
                f"Received: {shown(refused)}"
            )
        if clip_norm is None:
            clip_norm = optimizer.global_clipnorm
        if clip_norm is not None:
            check_number("clip_norm", clip_norm, 0, exclusive=True)
        check_integer("seed", seed, 0)
        check_integer("accumulate_steps", accumulate_steps, 1)
        check_trainable(model)
        auxiliary = {id(v) for v in model.backbone.auxiliary_variables}
        is_auxiliary = [id(v) in auxiliary for v in model.trainable_variables]
        # Positions of the gradients of the model and of auxiliary variables.
        # Each part has its own norm.
        self._parts = [
            np.flatnonzero(np.equal(is_auxiliary, kind))
            for kind in sorted({*is_auxiliary})
        ]
        self._loss_names = ["loss", "auxiliary_loss"][: 1 + bool(auxiliary)]
        self._rows = replica_batch_size(batch_size, strategy)
        if self._rows % accumulate_steps:
            raise ValueError(
                "`accumulate_steps` must divide the per-replica batch, "
                f"batch_size / replicas = {self._rows}. Received: "
                f"accumulate_steps={accumulate_steps}, batch_size={batch_size}"
            )
        if attention is not None:
            ways = registered("attention")
            check_one_of("attention", attention, ways)
            attention = ways[attention]
            attention.check(model)
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self.batch_size = batch_size
        self.clip_norm = clip_norm
        self.accumulate_steps = accumulate_steps
        with strategy.scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._seed = tf.Variable(seed, dtype=tf.int64, trainable=False)
            self.memory = model.backbone.memory_stack(self._rows)
            optimizer.build(model.trainable_variables)
            check_weights(optimizer, model.trainable_variables)
            self.loss_scale = None
            if model.compute_dtype == "float16":
                self.loss_scale = LossScale()
        device = device_of(strategy)
        on_cpu = device == "cpu"
        # Accelerators would round the operands of a matmul.
        self._norm = _norm_by_matmul if on_cpu else tf.linalg.global_norm
        self._compiled_gradients = compile_layers(
            self._gradients,
            strategy,
            model,
            training=True,
            attention=attention,
            jit_compile=jit_compile,
        )
        of_update = None
        if isinstance(optimizer, Muon):
            optimizer.matrix_dtype = "float32"
            # On other CPUs matmuls are slower in bfloat16.
            is_fast = not on_cpu or model.backbone.target(device, True).in_parts
            if is_fast and model.compute_dtype == "bfloat16":
                optimizer.matrix_dtype, of_update = "bfloat16", model
        self._compiled_update = compile_layers(
            self._update,
            strategy,
            of_update,
            training=True,
            jit_compile=jit_compile,
        )
        self.scored_step = self._scored_step
        if not on_cpu and strategy.num_replicas_in_sync == 1:
            # With several GPUs only the parts around the all-reduce can be
            # compiled, because XLA has no collectives there.
            self.scored_step = compile_layers(
                self._scored_step, strategy, jit_compile=jit_compile
            )
        self._run = host_loop(strategy, lambda b: self.scored_step(b)[0])

    @property
    def seed(self):
        return int(self._seed.numpy())

    @seed.setter
    def seed(self, seed):
        self._seed.assign(seed)

    def train(self, iterator: Any, num_steps: int) -> dict:
        """Runs steps in one host call.

        Args:
            iterator: Iterator over a distributed dataset of batches, positioned
                at `self.step`.
            num_steps: Integer.

        Returns:
            Dictionary of NumPy vectors with one entry per step. `loss` is in
            nats per token, `gradient_norm` is before clipping, and
            `learning_rate` is the rate of the step. Auxiliary variables add
            `auxiliary_loss`. float16 adds `loss_scale` and `skipped`, which is
            1 if the step applied nothing.

        Raises:
            FloatingPointError: If a loss or gradient is not finite and the loss
                scale cannot be lowered any further.
        """
        check_integer("num_steps", num_steps, 1)
        first = int(self.step.numpy())
        results = self._run(iterator, tf.constant(num_steps))
        results = {name: value.numpy() for name, value in results.items()}
        numbers = [results[x] for x in (*self._loss_names, "gradient_norm")]
        is_fatal = ~np.isfinite(numbers).all(axis=0)
        if self.loss_scale:
            is_fatal &= results["loss_scale"] <= LossScale.SMALLEST
        if is_fatal.any():
            i = np.flatnonzero(is_fatal)[0]
            raise FloatingPointError(
                f"At step {first + i + 1} the loss is {results['loss'][i]} "
                f"and the gradient norm {results['gradient_norm'][i]}. Lower "
                "the learning rate or warm up for longer."
            )
        return results

    # AutoGraph is off below because no Python `if` or `for` depends on tensors:
    # converting each function would delay the first step by seconds.
    @tf.autograph.experimental.do_not_convert
    def replica_step(self, batch: dict) -> dict:
        """Runs one step of one replica; public so that it can be lowered."""
        return self._scored_step(batch)[0]

    @tf.autograph.experimental.do_not_convert
    def _scored_step(self, batch):
        """Runs one step of one replica; also returns its nll `(b, T)`."""
        # The nll is `()` if micro-batches accumulated gradients.
        context = tf.distribute.get_replica_context()
        first_row = context.replica_id_in_sync_group * self._rows
        losses, nll, gradients = self._compiled_gradients(
            batch, self.step, first_row
        )
        # The only communication between replicas.
        gradients, losses = context.all_reduce("SUM", (gradients, losses))
        results, is_counted = self._compiled_update(gradients)
        count = keras_internals.num_batches(self.optimizer)
        count.assign_add(tf.cast(is_counted, tf.int64))
        self.step.assign_add(1)
        results.update(zip(self._loss_names, losses, strict=True))
        return results, nll

    @tf.autograph.experimental.do_not_convert
    def _update(self, gradients):
        """Clips the summed gradients and applies them to this replica."""
        results = {"learning_rate": tf.identity(self.optimizer.learning_rate)}
        if self.loss_scale:
            factor = 1.0 / self.loss_scale.value
            gradients = [gradient * factor for gradient in gradients]
        variables = self.model.trainable_variables
        gradients, finish = accumulate(self.optimizer, gradients, variables)
        norms = [self._norm([gradients[i] for i in p]) for p in self._parts]
        # The norm of auxiliary variables only if nothing else is trained.
        results["gradient_norm"] = norms[0]
        is_finite = True
        if self.loss_scale:
            is_finite = tf.reduce_all(tf.math.is_finite(norms))
            results["loss_scale"] = self.loss_scale.value.read_value()
            results["skipped"] = 1.0 - tf.cast(is_finite, tf.float32)
            self.loss_scale.update(is_finite)

        def apply():
            clipped = list(gradients)
            for part, norm in zip(self._parts, norms, strict=True):
                if self.clip_norm is not None:
                    values, _ = tf.clip_by_global_norm(
                        [gradients[i] for i in part],
                        self.clip_norm,
                        use_norm=norm,
                    )
                    for i, value in zip(part, values, strict=True):
                        clipped[i] = value
            apply_gradients(self.optimizer, clipped, variables)

        def move():
            # After each batch, as in Keras, and not only after each update.
            self.optimizer._update_model_variables_moving_average(variables)

        for is_due, update in ((finish(is_finite), apply), (is_finite, move)):
            if is_due is True:
                update()
            else:
                tf.cond(is_due, update, lambda: None)
        return results, is_finite

    @tf.autograph.experimental.do_not_convert
    def _gradients(self, batch, step, first_row):
        """Returns this replica's parts of losses and gradient, and its nll."""
        seed = fold_in(tf.cast(self._seed, tf.uint32), step)
        batch = dict(batch)
        # The loss is the mean over all targets of the step, on all replicas.
        batch["weights"] = tf.math.divide_no_nan(
            batch["weights"], batch.pop("num_targets")
        )
        compute = self._gradients_of_rows
        if self.accumulate_steps > 1:
            compute = self._accumulated_gradients
        losses, nll, memory, gradients = compute(
            batch, memory=self.memory.read(), seed=seed, first_row=first_row
        )
        self.memory.write(memory)
        return losses, nll, gradients

    def _accumulated_gradients(self, batch, memory, seed, first_row):
        """Computes `_gradients_of_rows` with gradient accumulation."""
        count = self.accumulate_steps
        rows = self._rows // count

        def split(value):
            """Returns rows as `(micro-batches, rows, ...)`."""
            return tf.reshape(value, (count, rows, *value.shape[1:]))

        batch = tf.nest.map_structure(split, batch)

        def add_micro_batch(i, sums, memory):
            part = tf.nest.map_structure(lambda x: x[i], (batch, memory))
            losses, _, new, gradients = self._gradients_of_rows(
                *part, seed, first_row + i * rows
            )
            # TensorFlow fuses `tf.add` with a matmul, which fails for `(1, D)`.
            sums = tf.nest.map_structure(
                lambda *pair: tf.add_n(pair), sums, (losses, gradients)
            )

            def put(x, y):
                if 0 in x.shape:  # no memory: TensorFlow refuses the update
                    return x
                return tf.tensor_scatter_nd_update(x, [[i]], y[None])

            memory = tf.nest.map_structure(put, memory, new)
            return i + 1, sums, memory

        zeros = [tf.zeros(v.shape) for v in self.model.trainable_variables]
        sums = (tf.zeros(()),) * len(self._loss_names), zeros
        _, (losses, gradients), memory = tf.while_loop(
            lambda i, *_: i < count,
            add_micro_batch,
            (0, sums, tf.nest.map_structure(split, memory)),
        )
        # [micro-batches, rows, ...] -> [micro-batches * rows, ...], static
        memory = tf.nest.map_structure(
            lambda x: tf.reshape(x, (self._rows, *x.shape[2:])), memory
        )
        return losses, (), memory, gradients

    def _gradients_of_rows(self, batch, memory, seed, first_row):
        """Returns losses, the nll of targets, memory and gradient."""
        batch = dict(batch)
        weights = batch.pop("weights")
        arguments = {
            **batch,
            "memory": memory,
            "training": True,
            "dropout_seed": seed,
            "first_row": first_row,
        }
        with tf.GradientTape() as tape:
            nll, memory = self.model.score(**arguments)
            losses = [tf.reduce_sum(nll * weights)]
            if len(self._loss_names) > 1:
                # Weights these means by the share of these rows in the batch.
                share = weights.shape[0] / self.batch_size
                losses.append(tf.add_n(self.model.backbone.losses) * share)
            elif self.model.losses:
                raise ValueError(
                    "The layers of `model` must add no losses, by `add_loss` "
                    "or a `regularizer`. Pass a `loss` to `compile`: `fit` "
                    f"then adds them. Received: {len(self.model.losses)} losses"
                )
            target = tf.add_n(losses)
            if self.loss_scale:
                target *= self.loss_scale.value
        variables = self.model.trainable_variables
        gradients = tape.gradient(target, variables)
        if self.loss_scale:
            memory = _reset_overflows(memory, self.memory.cold_start)
        return tuple(losses), nll, memory, [
            # Token type weights have no gradient without token types.
            tf.zeros(variable.shape) if gradient is None
            # Sparse gradients repeat the row of a repeated token, so their norm
            # would be wrong.
            else tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]  # fmt: skip


def _norm_by_matmul(gradients):
    """Computes the global norm, with squares summed by a matmul with ones."""
    # XLA fuses the square into the matmul: one pass over the gradients at
    # memory speed. Otherwise it writes the squares to memory before summing
    # them, which takes five times as long on a CPU.
    sums = [
        tf.reduce_sum(tf.matmul(tf.square(rows), tf.ones((rows.shape[1], 1))))
        for rows in (
            tf.reshape(g, (-1, g.shape[-1] if g.shape.rank else 1))
            for g in gradients
        )
    ]
    return tf.sqrt(tf.add_n(sums))


def _reset_overflows(memory, cold_start):
    """Resets the memory of rows with values that are not finite."""
    # They overflowed in float16, and would otherwise stay in memory forever.
    is_finite = tf.reduce_all(
        [
            tf.reduce_all(tf.math.is_finite(state), axis=(1, 2))
            for state in tf.nest.flatten(memory)
            if state.dtype.is_floating
        ],
        axis=0,
    )  # [B]
    return memory.reset_rows(~is_finite, cold_start)
