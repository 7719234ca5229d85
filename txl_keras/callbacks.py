"""Callbacks for models that keep memory from batch to batch."""

import collections
import inspect
import itertools
import json
import numbers

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from txl_keras import keras_internals
from txl_keras.checks import check_integer
from txl_keras.checks import check_path
from txl_keras.layers.memory.memory_stack import MemoryStack
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.checkpointing import copies
from txl_keras.training.checkpointing import shapes_of
from txl_keras.types import PathLike


class ResetMemory(keras.callbacks.Callback):
    """Resets memory at the start of each epoch, evaluation and prediction.

    Resets every `MemoryStack` of the model when an epoch of `fit`, a call of
    `evaluate` or a call of `predict` begins. Without this, the first batch of
    an epoch would attend to the end of the epoch before.
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

    def on_epoch_begin(self, epoch, logs=None):
        for stack in self._stacks():
            stack.reset_state()

    def _begin(self, logs=None):
        for stack in self._stacks():
            stack.check_batches()
            stack.reset_state()

    on_train_begin = on_test_begin = on_predict_begin = _begin

    def _stacks(self):
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
        return stacks


class BackupAndRestore(keras.callbacks.Callback):
    """Lets an interrupted `fit` of a language model go on exactly.

    Saves the model, the optimizer, the memory, the position in the data, the
    seed of dropout and the metrics of the epoch. If the same program is started
    again, `fit` goes on after the last step that was saved, and ends with the
    weights of a run that was never interrupted. `keras.callbacks.
    BackupAndRestore` has no memory and begins an epoch again.

    For a `TransformerXLCausalLM` with its default loss, trained on `Segments`,
    arrays or a `tf.data.Dataset` whose order is always the same. The numbers
    that other callbacks of `fit` count with are saved, too, and the
    `best_weights` of `EarlyStopping`. A warning names callbacks that hold more.

    Args:
        backup_dir: String or path, local or in a bucket. Use another folder for
            each run.
        save_freq: `"epoch"`, or an integer: the number of batches after which
            the state is saved.
        delete_checkpoint: Boolean, whether the backup is removed when `fit`
            ends, and with it the folder unless it holds other files.

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
        super().__init__()
        self.backup_dir = check_path("backup_dir", backup_dir)
        if save_freq != "epoch":
            check_integer("save_freq", save_freq, 1)
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self._epoch = self._saved = 0
        self._checkpoints = None
        self._others, self._restored = [], {}

    def _restore(self, steps, others, epochs):
        """Restores a backup; returns its epoch and batches, or None."""
        self.set_model(steps.model)
        self._others, trainer = others, steps.trainer
        try:
            tf.io.gfile.makedirs(self.backup_dir)  # fails before any work
        except tf.errors.OpError as error:
            raise ValueError(
                "`backup_dir` must be a folder that can be written to. "
                f"Received: backup_dir={self.backup_dir!r} ({error})"
            ) from error
        self._checkpoints = Checkpoints(self.backup_dir, trainer)
        expected = shapes_of(self._metric_variables())
        try:
            state = self._checkpoints.restore({"position": (4,), **expected})
        except ValueError as error:
            raise ValueError(
                "`backup_dir` must be empty, or hold a backup of this model. "
                f"Received: backup_dir={self.backup_dir!r}. {error}"
            ) from error
        self._restored = state or {}
        self._saved = int(trainer.step.numpy())
        if not state:
            return None
        epoch, batches, seed, is_last = map(int, state["position"])
        steps.seed = trainer.seed = seed
        # If a callback had stopped `fit`, no epoch is left.
        return epochs if is_last else epoch, batches

    def on_train_begin(self, logs=None):
        steps = getattr(self.model, "fit_steps", None)
        if steps is None:
            raise ValueError(
                "`BackupAndRestore` needs a TransformerXLCausalLM with the "
                f"default loss. Received: model={self.model.name!r}"
            )
        _restore_callbacks(self._others, self._restored)
        if not steps.progress.to_skip:  # its metrics are of the epoch before
            self._restored = {}

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        if self._restored:
            for name, variable in self._metric_variables().items():
                variable.assign(self._restored[name])

    def on_train_batch_end(self, batch, logs=None):
        steps = self.model.fit_steps
        if self._restored and not steps.progress.to_skip:
            # Again: they have counted the batches that were skipped.
            _restore_callbacks(self._others, self._restored)
            self._restored = {}
        if self.save_freq == "epoch":
            return
        if int(steps.trainer.step.numpy()) >= self._saved + self.save_freq:
            self._save(self._epoch, steps.progress.done)

    def on_epoch_end(self, epoch, logs=None):
        if self.save_freq == "epoch":
            self._save(epoch + 1, 0)

    def on_train_end(self, logs=None):
        self._checkpoints.wait()
        if self.delete_checkpoint:
            self._checkpoints.remove()

    def _save(self, epoch, batches):
        steps = self.model.fit_steps
        self._saved = int(steps.trainer.step.numpy())
        held = [name for other in self._others for name in _held_by(other)]
        if held:
            logging.log_first_n(
                logging.WARNING,
                "The backup lacks what callbacks hold beside numbers, and what "
                "is empty again after a restart: %s.",
                1, ", ".join(held),
            )  # fmt: skip
        seed, is_last = steps.trainer.seed, self.model.stop_training
        self._checkpoints.save(
            {
                "position": np.array([epoch, batches, seed, is_last]),
                **_callback_state(self._others),
                **copies(self._metric_variables()),
            }
        )

    def _metric_variables(self):
        """Returns the variables of all metrics by name."""
        variables = [v for m in self.model.metrics for v in m.variables]
        return {f"metric_{i}": v for i, v in enumerate(variables)}


def _numbers(callback):
    """Returns what a callback counts with: numbers that are no arguments."""
    arguments = inspect.signature(type(callback)).parameters
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in arguments
        and (value is None or isinstance(value, numbers.Real))
    }


def _named(callbacks):
    """Yields pairs of a name, by class and place in it, and a callback."""
    counts = collections.Counter()
    for callback in callbacks:
        kind = type(callback).__name__
        yield f"{kind}_{counts[kind]}", callback
        counts[kind] += 1


def _callback_state(callbacks):
    """Returns the numbers and the best weights of callbacks, as arrays."""
    state = {}
    for name, callback in _named(callbacks):
        text = json.dumps(_numbers(callback), default=float).encode()
        state[name] = np.frombuffer(text, np.uint8)
        weights = getattr(callback, "best_weights", None) or ()
        for i, weight in enumerate(weights):
            state[f"{name}/{i}"] = np.asarray(weight)
    return state


def _restore_callbacks(callbacks, state):
    """Gives callbacks what `_callback_state` returned."""
    for name, callback in _named(callbacks):
        if name not in state:
            continue  # it was not there before
        saved = json.loads(state[name].tobytes())
        for key in _numbers(callback).keys() & saved:
            setattr(callback, key, saved[key])
        places = (f"{name}/{i}" for i in itertools.count())
        weights = [
            state[place]
            for place in itertools.takewhile(state.__contains__, places)
        ]
        if weights:
            callback.best_weights = weights


def _held_by(callback):
    """Returns the names of a callback's attributes that are not saved."""
    if type(callback).__module__.startswith(("keras.", "txl_keras.")):
        return []
    arguments = {"params", *inspect.signature(type(callback)).parameters}
    return [
        f"{type(callback).__name__}.{name}"
        for name, value in vars(callback).items()
        if name not in arguments
        and isinstance(value, (list, dict, set, np.ndarray))
        and len(value)
    ]
