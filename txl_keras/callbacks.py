"""Callbacks for models that keep memory from batch to batch."""

import keras

from txl_keras.layers.memory.memory_stack import MemoryStack
from txl_keras.layers.memory.memory_stack import check_batches


class ResetMemory(keras.callbacks.Callback):
    """Resets memory at the start of each epoch, evaluation and prediction.

    Resets every `MemoryStack` of the model when an epoch of `fit`, a call of
    `evaluate` or a call of `predict` begins. Without this, the first batch of
    an epoch would attend to the end of the epoch before.
    `TransformerXLCausalLM` resets its own memory; a model that you build from
    `MemoryStack` needs this callback.

    Raises:
        ValueError: When `fit`, `evaluate` or `predict` begins, if the model has
            no `MemoryStack`, `shuffle` is not False, or the last batch of
            arrays is short.

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

    def on_train_begin(self, logs=None):
        self._begin()

    def on_epoch_begin(self, epoch, logs=None):
        for stack in self._stacks():
            stack.reset_state()

    def on_test_begin(self, logs=None):
        self._begin()

    def on_predict_begin(self, logs=None):
        self._begin()

    def _begin(self):
        for stack in self._stacks():
            check_batches(stack.batch_size)
            stack.reset_state()

    def _stacks(self):
        stacks = [
            layer
            for layer in self.model._flatten_layers()
            if isinstance(layer, MemoryStack)
        ]
        if not stacks:
            raise ValueError(
                "`ResetMemory` needs a model with a `MemoryStack` among its "
                f"layers. Received: model={self.model.name!r}"
            )
        return stacks
