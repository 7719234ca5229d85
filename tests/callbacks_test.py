"""Forgetting memory in a Keras model of one's own."""

import keras
import numpy as np
import pytest

from txl_keras.backend import tf
from txl_keras.callbacks import ResetMemory
from txl_keras.layers import MemoryStack
from txl_keras.layers import RelativeMultiHeadAttention

pytestmark = pytest.mark.every_backend

B, T, M, D, BATCHES = 2, 3, 4, 8, 3
X = np.random.default_rng(1).normal(size=(BATCHES * B, T, D)).astype("float32")


def model_with_memory(learning_rate=0.0):
    stack = MemoryStack(1, batch_size=B, memory_length=M, hidden_dim=D)
    segment = keras.Input((T, D), batch_size=B)
    memory, memory_mask = stack(segment)
    attended = RelativeMultiHeadAttention(num_heads=2, key_dim=5)(
        segment, memory=memory, memory_mask=memory_mask
    )
    model = keras.Model(segment, attended)
    model.compile(keras.optimizers.SGD(learning_rate), "mse")
    return model, stack


@pytest.fixture(scope="module")
def model():
    """A model that keeps its weights, and forgets with `ResetMemory`."""
    return model_with_memory()[0]


def test_every_epoch_and_evaluation_begins_cold(model):
    calls = {"batch_size": B, "verbose": 0, "callbacks": [ResetMemory()]}
    history = model.fit(X, X, shuffle=False, epochs=3, **calls)
    losses = history.history["loss"]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    np.testing.assert_allclose(
        [model.evaluate(X, X, **calls) for _ in range(2)], losses[0], rtol=1e-6
    )
    predictions = [model.predict(X, **calls) for _ in range(2)]
    np.testing.assert_array_equal(*predictions)
    # Memory is read: without the callback an evaluation goes on.
    del calls["callbacks"]
    assert abs(model.evaluate(X, X, **calls) - losses[0]) > 1e-5


@pytest.mark.tensorflow
def test_a_short_last_batch_is_refused_with_a_remedy():
    model, _ = model_with_memory()
    model.compile("sgd", "mse", jit_compile=False)  # XLA raises no errors
    calls = {"batch_size": B, "verbose": 0}
    message = "drop_remainder=True"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model.fit(X[:-1], X[:-1], shuffle=False, **calls)


@pytest.mark.tensorflow
def test_a_dataset_is_read_in_its_own_order(model):
    dataset = tf.data.Dataset.from_tensor_slices((X, X)).batch(B)
    # Keras ignores `shuffle`, which is True by default, for a dataset.
    from_dataset = model.fit(dataset, verbose=0, callbacks=[ResetMemory()])
    from_arrays = model.fit(
        X, X, batch_size=B, shuffle=False, verbose=0, callbacks=[ResetMemory()]
    )
    np.testing.assert_allclose(
        from_dataset.history["loss"], from_arrays.history["loss"], rtol=1e-6
    )


def test_a_model_without_memory_is_named():
    inputs = keras.Input((D,))
    model = keras.Model(inputs, keras.layers.Dense(D)(inputs), name="dense")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`MemoryStack` .* model='dense'"):
        model.fit(X[:, 0], X[:, 0], callbacks=[ResetMemory()], verbose=0)
