"""Callbacks for models that keep memory from batch to batch."""

import itertools

import keras
import numpy as np
from absl import logging

from txl_keras import gfile
from txl_keras import keras_internals
from txl_keras.checks import check_integer
from txl_keras.checks import check_path
from txl_keras.layers.memory import MemoryStack
from txl_keras.tensor_files import shapes_of
from txl_keras.types import PathLike


class ResetMemory(keras.callbacks.Callback):
    """Resets memory at the start of each epoch, evaluation and prediction.

    Resets every `MemoryStack` of the model when an epoch of `fit`, a call of
    `evaluate` or a call of `predict` begins. Without this, the first batch of
    an epoch would attend to the end of the previous epoch.
    `TransformerXLCausalLM` resets its own memory; a model that you build from
    `MemoryStack` needs this callback.

    Example:

    ```python
    import keras
    import numpy as np
    from txl_keras.callbacks import ResetMemory
    from txl_keras.layers import MemoryStack, RelativeMultiHeadAttention

    stack = MemoryStack(1, batch_size=4, memory_length=24, hidden_dim=32)
    segment = keras.Input((16, 32), batch_size=4)
    memory, memory_mask = stack(segment)
    attended = RelativeMultiHeadAttention(num_heads=4, key_dim=8)(
        segment, memory=memory, memory_mask=memory_mask
    )
    model = keras.Model(segment, attended)
    model.compile("adam", "mse")
    x = np.ones((12, 16, 32), "float32")  # 3 batches of 4 rows
    model.fit(
        x, x, batch_size=4, shuffle=False, callbacks=[ResetMemory()], verbose=0
    )
    model.evaluate(
        x, x, batch_size=4, callbacks=[ResetMemory()], verbose=0
    )
    ```

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.2.
    """

    def on_epoch_begin(self, epoch=None, logs=None):
        stacks = [
            layer
            for layer in keras_internals.layers_of(self.model)
            if isinstance(layer, MemoryStack)
        ]
        if not stacks:
            raise ValueError(
                "`ResetMemory` needs a model with a `MemoryStack` among its "
                f"layers. Received: model={self.model.name!r}"
            )
        for stack in stacks:
            stack.reset_state()

    on_train_begin = on_test_begin = on_predict_begin = on_epoch_begin


class BackupAndRestore(keras.callbacks.Callback):
    """Resumes an interrupted `fit` of a language model exactly.

    Saves the model, the optimizer, the memory, the position in the data, the
    seed of dropout and the metrics of the epoch. If the same program is started
    again, `fit` resumes after the last saved step, and ends with the weights of
    a run that was never interrupted. `keras.callbacks.BackupAndRestore` does
    not save memory, and starts the interrupted epoch again.

    It is for a `TransformerXLCausalLM` with its default loss, trained on
    `Segments`, arrays or a `tf.data.Dataset` whose order is always the same.
    Other callbacks start again after an interruption; a warning names those
    that monitor a metric, such as `EarlyStopping`.

    Args:
        backup_dir: String or path, local or in a bucket. Use another folder for
            each run.
        save_freq: `"epoch"`, or an integer: the number of batches after which
            the state is saved. An integer with `SwapEMAWeights(
            swap_on_epoch=True)`.
        delete_checkpoint: Boolean, whether the backup is removed when `fit`
            ends. The folder is then removed, too, if it holds no other files.

    Example:

    ```python
    import numpy as np
    from txl_keras.callbacks import BackupAndRestore
    from txl_keras.data import Segments
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    model.compile("adam")
    tokens = np.frombuffer(b"to be or not to be, " * 50, "uint8")
    segments = Segments(tokens, 4, 16, drop_remainder=True)
    backup = BackupAndRestore("backup", save_freq=10)
    model.fit(segments, epochs=2, callbacks=[backup], verbose=0)
    ```
    """

    def __init__(
        self,
        backup_dir: PathLike,
        save_freq: int | str = "epoch",
        delete_checkpoint: bool = True,
    ):
        import txl_keras.needs_tensorflow  # noqa: F401

        super().__init__()
        self.backup_dir = check_path("backup_dir", backup_dir)
        if save_freq != "epoch":
            check_integer("save_freq", save_freq, 1)
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self._epoch = self._unsaved = self._first = 0
        self._checkpoints = self._restored = None
        self._to_skip = self._to_drop = 0
        self._is_skipping = False

    def _begin(self, model, others, initial_epoch, epochs, steps_per_epoch):
        """Restores a backup, if there is one; returns the epoch to begin."""
        counting = [c for c in others if hasattr(c, "monitor")]
        if counting:
            logging.warning(
                "After an interruption these callbacks begin again: %s.",
                ", ".join(type(callback).__name__ for callback in counting),
            )
        swaps = any(getattr(c, "swap_on_epoch", False) for c in others)
        if swaps and self.save_freq == "epoch":
            raise ValueError(
                "`save_freq` must be an integer with `SwapEMAWeights("
                "swap_on_epoch=True)`, which exchanges the weights for their "
                "averages at the end of an epoch. Received: save_freq='epoch'"
            )
        self._to_skip = self._to_drop = self._unsaved = 0
        self.set_model(model)
        steps, trainer = model.fit_steps, model.fit_steps.trainer
        gfile.makedirs(self.backup_dir)  # fails before any work
        from txl_keras.training.checkpointing import Checkpoints

        self._checkpoints = Checkpoints(self.backup_dir, trainer)
        expected = shapes_of(self._metric_variables())
        try:
            state = self._checkpoints.restore({"position": (4,), **expected})
        except ValueError as error:
            raise ValueError(
                "`backup_dir` must be empty, or hold a backup of this model. "
                f"Received: backup_dir={self.backup_dir!r}. {error}"
            ) from error
        if not state:
            return initial_epoch
        epoch, batches, seed, is_last = map(int, state["position"])
        steps.seed = trainer.seed = seed
        self._restored, self._to_skip = state, batches
        # All epochs of `steps_per_epoch` read one iterator.
        executions = -(-(steps_per_epoch or 0) // model.steps_per_execution)
        self._to_drop = (epoch - initial_epoch) * executions
        # If a callback had stopped `fit`, no epoch is left.
        return epochs if is_last else epoch

    def on_train_begin(self, logs=None):
        if self._checkpoints is None:
            raise ValueError(
                "`BackupAndRestore` needs a TransformerXLCausalLM with the "
                f"default loss. Received: model={self.model.name!r}"
            )

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        if self._to_skip:  # otherwise its metrics are of the epoch before
            for name, variable in self._metric_variables().items():
                variable.assign(self._restored[name])

    def on_train_batch_begin(self, batch, logs=None):
        self._first = batch
        if self._to_skip or self._to_drop:
            self._train_function = self.model.train_function
            self.model.train_function = self._skip

    def _skip(self, iterator):
        """Reads batches that were used before the interruption."""
        self.model.train_function = self._train_function
        size = self.model.steps_per_execution
        for _ in itertools.islice(iterator, self._to_drop * size):
            pass
        self._to_drop = 0
        if not self._to_skip:
            return self._train_function(iterator)
        for _ in itertools.islice(iterator, size):
            pass
        self._to_skip = max(0, self._to_skip - size)
        self._is_skipping = True
        return self.model.get_metrics_result()

    def on_train_batch_end(self, batch, logs=None):
        # Not the steps of the trainer, which a model's own step may not count.
        if not self._is_skipping:
            self._unsaved += batch + 1 - self._first
        self._is_skipping = False
        if self.save_freq != "epoch" and self._unsaved >= self.save_freq:
            self._save(self._epoch, batch + 1)

    def on_epoch_end(self, epoch, logs=None):
        self._to_skip = 0
        if self.save_freq == "epoch":
            self._save(epoch + 1, 0)

    def on_train_end(self, logs=None):
        self._checkpoints.wait()
        if self.delete_checkpoint:
            self._checkpoints.remove()
        self._checkpoints = None

    def _save(self, epoch, batches):
        from txl_keras.training.checkpointing import copies

        trainer = self.model.fit_steps.trainer
        self._unsaved = 0
        position = epoch, batches, trainer.seed, self.model.stop_training
        self._checkpoints.save(
            {
                "position": np.array(position),
                **copies(self._metric_variables()),
            }
        )

    def _metric_variables(self):
        """Returns the variables of all metrics by name."""
        variables = [v for m in self.model.metrics for v in m.variables]
        return {f"metric_{i}": v for i, v in enumerate(variables)}
