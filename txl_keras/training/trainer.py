"""The training step.

Letters: `B` batch over all replicas, `b` rows of one replica, `T` segment.
"""

import functools
import math

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.pallas import TILE_QUERIES
from txl_keras.layers.compute.pallas import check_lengths
from txl_keras.layers.memory.memory_stack import Memory
from txl_keras.tpu.compiling import VERSIONS
from txl_keras.tpu.compiling import check_packages
from txl_keras.training.loss_scale import LossScale
from txl_keras.training.optimizers import apply_gradients
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import compile_layers
from txl_keras.training.strategy import compile_replica_function
from txl_keras.training.strategy import device_of
from txl_keras.training.strategy import host_loop


class Trainer:
    """Trains a language model, one replica or many alike.

    A step, on every replica: read memory, forward and backward, write memory;
    then sum the gradients over replicas, in one all-reduce; then clip them by
    their global norm and apply them, every replica to its own copy of the
    weights. What lies before and after the sum is compiled by XLA, on some CPUs
    in parts (`txl_keras.layers.compute.target`). The loss is the mean over the
    targets of the global batch, so the number of replicas changes nothing but
    the speed.

    A model of the policy `mixed_float16` is trained with a loss scale
    (`LossScale`): a step whose summed gradient is not finite is skipped by all
    replicas, and counts as a step, though not for the optimizer.

    Batches are those of `Segments` for a `TransformerXLCausalLM`, and those of
    `PermutedSegments` for an `XLNetPermutationLM`: all that is in them but
    `weights`, `num_targets` and `bucket` is an argument of `model.score`.

    Args:
        model: `TransformerXLCausalLM` or `XLNetPermutationLM`, made in the
            scope of `strategy`.
        optimizer: An optimizer of `txl_keras.training.optimizers`, made in
            the scope of `strategy`.
        strategy: The `tf.distribute.Strategy`.
        batch_size: Integer `B`.
        clip_norm: Optional float, the largest global norm of the gradient.
        seed: Integer, of the dropout masks.
        segment_lengths: Optional tuple of integers, `Segments.segment_lengths`
            of the data; needed where they vary. Each is compiled.
        accumulate_steps: Integer. The rows of a replica are computed in so
            many pieces, one after the other, and their gradients added up:
            the same step with the activations of fewer rows. Each piece has
            the memory of its rows.
        intermediate_loss_steps: Integer. Blocks below the last predict too,
            for so many steps: block l of L for the first l / L of them. That
            is half of all steps in Al-Rfou et al. (2018), section 3.2. Their
            losses are added to what is minimized, not to `loss`.
        attention_kernel: Boolean, whether attention is a kernel for TPUs
            (`txl_keras.layers.compute.pallas`), which needs jax. On a CPU it is
            interpreted, slowly.
        stop: Optional `StopRequest`: steps end early where it was heard.

    Attributes:
        step: int64 `tf.Variable`, the steps done.
        stopped: Boolean, whether `train` ended early: on some worker `stop`
            was heard.

    Raises:
        ValueError: If `batch_size` does not divide over the replicas, or their
            rows by `accumulate_steps`, or a number is out of its range, or
            `attention_kernel` is not for that model, its lengths or device.
        ImportError: If `attention_kernel` lacks jax.

    Example:

    ```python
    import numpy as np
    import tensorflow as tf
    from txl_keras.data import Segments
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.training.checkpointing import Checkpoints
    from txl_keras.training.optimizers import build_optimizer
    from txl_keras.training.trainer import Trainer

    strategy = tf.distribute.get_strategy()
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
        model,
        optimizer,
        strategy,
        batch_size,
        clip_norm=None,
        seed=0,
        segment_lengths=None,
        accumulate_steps=1,
        intermediate_loss_steps=0,
        attention_kernel=False,
        stop=None,
    ):
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise ValueError(
                "`clip_norm` must be greater than 0 and finite, or None. "
                f"Received: clip_norm={clip_norm}"
            )
        check_integer("seed", seed, 0)
        check_integer("accumulate_steps", accumulate_steps, 1)
        check_integer("intermediate_loss_steps", intermediate_loss_steps, 0)
        has_blocks = hasattr(model, "score_blocks") and (
            model.backbone.has_attention and model.backbone.num_layers > 1
        )
        if intermediate_loss_steps and not has_blocks:
            raise ValueError(
                "`intermediate_loss_steps` needs two blocks or more of a "
                f"TransformerXLBackbone. Received: {intermediate_loss_steps} "
                f"steps of {type(model.backbone).__name__}, "
                f"num_layers={model.backbone.num_layers}"
            )
        if attention_kernel:
            _check_kernel(model, segment_lengths)
        self._rows = replica_batch_size(batch_size, strategy)
        if self._rows % accumulate_steps:
            raise ValueError(
                "`accumulate_steps` must divide the rows of a replica, "
                f"batch_size / replicas = {self._rows}. Received: "
                f"accumulate_steps={accumulate_steps}"
            )
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self.batch_size = batch_size
        self.clip_norm = clip_norm
        self.seed = seed
        self.segment_lengths = segment_lengths
        self.accumulate_steps = accumulate_steps
        self.intermediate_loss_steps = intermediate_loss_steps
        self.stopped = False
        names = ["loss", "gradient_norm", "learning_rate"]
        with strategy.scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.memory = model.backbone.memory_stack(self._rows)
            optimizer.build(model.trainable_variables)
            self.loss_scale = None
            if model.compute_dtype == "float16":
                self.loss_scale = LossScale()
                names += ["loss_scale", "skipped"]
        on_cpu = device_of(strategy) == "cpu"
        # Others than CPUs would round what they multiply.
        self._norm = _norm_by_products if on_cpu else tf.linalg.global_norm
        self._compiled_gradients = compile_layers(
            self._gradients,
            strategy,
            model,
            training=True,
            # TensorFlow has no gradient of what XLA compiled inside of a
            # `tf.cond`.
            in_parts=intermediate_loss_steps == 0,
            kernel=attention_kernel,
        )
        self._compiled_update = compile_replica_function(self._update, strategy)
        step = self.replica_step
        if not on_cpu and strategy.num_replicas_in_sync == 1:
            # XLA has no collectives on GPUs: with several replicas only what
            # lies around the sum of gradients is compiled.
            step = compile_replica_function(self.replica_step, strategy)
        self._stop = stop or StopRequest()
        self._run = host_loop(strategy, step, names, self._stop.variable)

    @property
    def piece_rows(self):
        """Rows that a replica computes at a time."""
        return self._rows // self.accumulate_steps

    def train(self, iterator, num_steps):
        """Runs steps, without a word from the host in between.

        Args:
            iterator: Iterator over a distributed dataset of the model's
                batches, at `self.step`.
            num_steps: Integer.

        Returns:
            Dictionary of NumPy vectors of `num_steps`, or fewer if stopped:
            `loss`, nats a token, `gradient_norm`, before clipping, and
            `learning_rate`; in float16 also `loss_scale`, and `skipped`, 1
            where nothing was applied.

        Raises:
            FloatingPointError: If a loss or gradient is not finite and no
                lower loss scale can help.
        """
        check_integer("num_steps", num_steps, 1)
        first = int(self.step.numpy())
        results = self._run(iterator, tf.constant(num_steps))
        results = {name: value.numpy() for name, value in results.items()}
        self.stopped = bool(results.pop("stop").any())
        hopeless = np.zeros(len(results["loss"]), bool)
        for name in ("loss", "gradient_norm"):
            hopeless |= ~np.isfinite(results[name])
        if self.loss_scale:
            hopeless &= results["loss_scale"] <= LossScale.SMALLEST
        if hopeless.any():
            at = np.flatnonzero(hopeless)[0]
            raise FloatingPointError(
                f"At step {first + at + 1} the loss is {results['loss'][at]} "
                f"and the gradient norm {results['gradient_norm'][at]}."
            )
        return results

    # Nothing below has Python's `if` or `for` on tensors. AutoGraph would see
    # to it for seconds all the same, function by function, before step one.
    @tf.autograph.experimental.do_not_convert
    def replica_step(self, batch, stop):
        """One step of one replica; its results are those of all.

        `train` runs it on all replicas. Public for who compiles it elsewhere.

        Args:
            batch: Dictionary of tensors, a batch of the rows of one replica.
            stop: float32 scalar, `StopRequest.variable` of this worker.

        Returns:
            Dictionary of float32 scalars: see `train`.
        """
        context = tf.distribute.get_replica_context()
        first_row = context.replica_id_in_sync_group * self._rows
        loss, gradients = self._compiled_gradients(batch, self.step, first_row)
        # The only place where replicas meet: one all-reduce, which takes the
        # loss and the wish to stop along. (A sum over workers asks a tensor
        # for its device, which what comes from the loop does not have.)
        *gradients, loss, stop = context.all_reduce(
            "SUM", [*gradients, loss, tf.identity(stop)]
        )
        results, is_applied = self._compiled_update(gradients)
        self.optimizer.iterations.assign_add(tf.cast(is_applied, tf.int64))
        self.step.assign_add(1)
        return {**results, "loss": loss, "stop": stop}

    @tf.autograph.experimental.do_not_convert
    def _update(self, gradients):
        """Clips the summed gradients and applies them to this replica."""
        is_finite = True
        results = {"learning_rate": tf.identity(self.optimizer.learning_rate)}
        if self.loss_scale:
            gradients = self.loss_scale.unscale(gradients)
        norm = self._norm(gradients)
        if self.loss_scale:
            is_finite = tf.math.is_finite(norm)
            results["loss_scale"] = self.loss_scale.value.read_value()
            results["skipped"] = 1.0 - tf.cast(is_finite, tf.float32)
            self.loss_scale.update(is_finite)

        def apply():
            clipped = gradients
            if self.clip_norm is not None:
                clipped, _ = tf.clip_by_global_norm(
                    gradients, self.clip_norm, use_norm=norm
                )
            apply_gradients(
                self.optimizer, clipped, self.model.trainable_variables
            )

        if self.loss_scale:
            tf.cond(is_finite, apply, lambda: None)
        else:
            apply()
        return {**results, "gradient_norm": norm}, is_finite

    @tf.autograph.experimental.do_not_convert
    def _gradients(self, batch, step, first_row):
        """Returns this replica's part of the loss and of its gradient."""
        seed = fold_in(tf.cast(self.seed, tf.uint32), step)
        batch = dict(batch)
        # Of the mean over all targets of the step, on all replicas.
        batch["weights"] /= batch.pop("num_targets")
        bucket = batch.pop("bucket", None)
        compute = functools.partial(
            self._of_rows if self.accumulate_steps == 1 else self._in_pieces,
            memory=self.memory.read(),
            seed=seed,
            first_row=first_row,
        )
        if bucket is None:
            loss, memory, gradients = compute(batch)
        else:
            loss, memory, gradients = tf.switch_case(
                bucket,
                [
                    functools.partial(compute, _shortened(batch, length))
                    for length in self.segment_lengths
                ],
            )
        self.memory.write(memory)
        return loss, gradients

    def _in_pieces(self, batch, memory, seed, first_row):
        """Computes `_of_rows` with gradient accumulation."""
        rows = self.piece_rows

        def add_piece(i, loss, gradients, kept):
            start = i * rows
            of_piece = functools.partial(_rows_from, start=start, rows=rows)
            piece_loss, piece_memory, piece_gradients = self._of_rows(
                tf.nest.map_structure(of_piece, batch),
                tf.nest.map_structure(of_piece, memory),
                seed,
                first_row + start,
            )
            return (
                i + 1,
                loss + piece_loss,
                tf.nest.map_structure(tf.add, gradients, piece_gradients),
                [
                    array.write(i, value)
                    for array, value in zip(
                        kept, tf.nest.flatten(piece_memory), strict=True
                    )
                ],
            )

        _, loss, gradients, kept = tf.while_loop(
            lambda i, *_: i < self.accumulate_steps,
            add_piece,
            (
                0,
                0.0,
                [tf.zeros(v.shape) for v in self.model.trainable_variables],
                [
                    tf.TensorArray(
                        value.dtype,
                        self.accumulate_steps,
                        element_shape=(rows, *value.shape[1:]),
                    )
                    for value in tf.nest.flatten(memory)
                ],
            ),
        )
        # [pieces, rows, ...] -> [pieces * rows, ...], all static
        values = [
            tf.reshape(array.stack(), value.shape)
            for array, value in zip(kept, tf.nest.flatten(memory), strict=True)
        ]
        return loss, tf.nest.pack_sequence_as(memory, values), gradients

    def _of_rows(self, batch, memory, seed, first_row):
        """Returns loss, new memory and gradient of some rows."""
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
            if self.intermediate_loss_steps:
                losses, memory = self.model.score_blocks(
                    weights=weights,
                    is_scored=self._scored_blocks(),
                    **arguments,
                )
            else:
                nll, memory = self.model.score(**arguments)
                losses = [tf.reduce_sum(nll * weights)]
            target = tf.add_n(losses)
            if self.loss_scale:
                target = self.loss_scale.scale(target)
        variables = self.model.trainable_variables
        gradients = tape.gradient(target, variables)
        if self.loss_scale:
            memory = _forget_overflows(memory, self.memory.cold_start)
        return losses[-1], memory, [
            # A batch without token types has no use for those weights.
            tf.zeros(variable.shape) if gradient is None
            # Sparse ones have a row twice where a token comes twice: their
            # norm would be another.
            else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]  # fmt: skip

    def _scored_blocks(self):
        """Which blocks below the last predict in this step."""
        num_blocks = self.model.backbone.num_layers
        return [
            self.step * num_blocks < block * self.intermediate_loss_steps
            for block in range(1, num_blocks)
        ]


def _check_kernel(model, segment_lengths):
    """Sees that the attention of a model can be a kernel."""
    # jax alone: what is an extra of this package asks for tensorflow, which
    # pip would install over that of a TPU.
    check_packages("`attention_kernel`", f"jax=={VERSIONS['jax']}", ["jax"])
    backbone = model.backbone
    attention_type = getattr(backbone, "attention_type", None)
    if attention_type != "relative" or model.compute_dtype == "float16":
        raise ValueError(
            "`attention_kernel` is for a TransformerXLBackbone with "
            "attention_type=relative, in float32 or bfloat16. Received: "
            f"{type(backbone).__name__}, attention_type={attention_type}, "
            f"{model.compute_dtype}"
        )
    for length in segment_lengths or (TILE_QUERIES,):
        check_lengths(length, backbone.memory_length)


def _norm_by_products(gradients):
    """The global norm; squares are summed up by a product with ones.

    XLA fuses the two: one pass over the gradients, at the speed of memory.
    Squares that are summed otherwise it writes down before it sums them, which
    on a CPU takes five times as long (WikiText-103's model: 100 ms, not 20).
    """
    sums = [
        tf.reduce_sum(tf.linalg.matvec(tf.square(rows), tf.ones(rows.shape[1])))
        for rows in (tf.reshape(g, (-1, g.shape[-1])) for g in gradients)
    ]
    return tf.sqrt(tf.add_n(sums))


def _shortened(batch, length):
    """Cuts the tokens of a batch whose segments vary in length."""
    return {
        name: value[:, :length]
        if name in ("inputs", "targets", "weights")
        else value
        for name, value in batch.items()
    }


def _rows_from(tensor, start, rows):
    """Some rows of a tensor, their number static as XLA needs it."""
    begin = [start] + [0] * (tensor.shape.rank - 1)
    return tf.slice(tensor, begin, [rows, *tensor.shape[1:]])


def _forget_overflows(memory, cold_start):
    """Forgets rows that float16 could not hold: they would stay forever."""
    is_finite = tf.reduce_all(
        [
            tf.reduce_all(tf.math.is_finite(state), axis=(1, 2))
            for state in memory.states
        ],
        axis=0,
    )  # [B]
    # Zeros too, as a mask does not hide what is not finite: 0 * inf is nan.
    states = tuple(
        tf.where(is_finite[:, None, None], state, tf.zeros((), state.dtype))
        for state in memory.states
    )
    return Memory(states, memory.valid_length).reset_rows(
        ~is_finite, cold_start
    )
