"""States are positions here: token t of row b has hidden state 100 b + t."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.layers import MemoryStack
from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers.memory import initial_memory

pytestmark = pytest.mark.every_backend

B, M, D, L = 3, 5, 4, 2


def segment(start, end, rows=B):
    t = np.arange(start, end) + 100 * np.arange(rows)[:, None]
    return np.repeat(t[:, :, None], D, axis=2).astype("float32")


def positions(states):
    """Hidden states back to positions `(B, M)`."""
    states = np.array(states)
    assert (states == states[:, :, :1]).all()
    return states[:, :, 0].tolist()


def test_keras_layer(tmp_path):
    check_layer(
        MemoryStack,
        {
            "num_layers": 1,
            "batch_size": B,
            "memory_length": M,
            "hidden_dim": D,
            "cold_start": "zeros",
        },
        {"inputs": segment(0, 2)},
        num_weights=0,
        folder=tmp_path,
    )


@pytest.mark.parametrize("batch_size", [B, None])
@pytest.mark.parametrize("length", [2, 5, 7])
def test_keeps_the_last_m_states(batch_size, length):
    stack = MemoryStack(1, batch_size, M, D)
    call = stack
    if batch_size and ON_TENSORFLOW:
        call = tf.function(stack, jit_compile=True)
    text = []
    for start in range(0, 4 * length, length):
        memory, mask = call(segment(start, start + length))
        known = text[-M:]
        expected = [[100 * b + t for t in known] for b in range(B)]
        valid = [[False] * (M - len(known)) + [True] * len(known)] * B
        assert np.array(mask).tolist() == valid
        assert np.array(positions(memory))[:, M - len(known) :].tolist() == (
            expected if known else [[]] * B
        )
        text.extend(range(start, start + length))


@pytest.mark.parametrize("batch_size", [B, None])
def test_masked_steps_are_not_remembered(batch_size):
    stack = MemoryStack(1, batch_size, M, D)
    inputs = keras.Input((4, D), batch_size=batch_size)
    outputs = stack(keras.layers.Masking(mask_value=-1.0)(inputs))
    model = keras.Model(inputs, outputs)
    x = segment(0, 4)
    x[0, 1] = x[0, 3] = x[2, 0] = -1  # row 1 has no masked step
    call = model
    if ON_TENSORFLOW:
        call = tf.function(model, jit_compile=bool(batch_size))
    assert not np.asarray(call(x)[1]).any()
    memory = stack.read()
    kept = [row[M - n :] for row, n in zip(
        positions(memory.states[0]), np.array(memory.valid_length), strict=True
    )]  # fmt: skip
    assert kept == [[0, 2], [100, 101, 102, 103], [201, 202, 203]]
    # A mask that is given, and hides NaN.
    x[1] = np.nan
    stack(x, mask=np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]]))
    memory = stack.read()
    assert positions(memory.states[0])[1][1:] == kept[1]
    assert np.array(memory.valid_length).tolist() == [4, 4, 5]


def test_memory_of_length_zero_keeps_nothing():
    memory, mask = MemoryStack(1, B, 0, D)(segment(0, 4))
    assert (memory.shape, mask.shape) == ((B, 0, D), (B, 0))
    memory = initial_memory(L, B, 0, D).extend([segment(0, 3)] * L)
    assert [s.shape for s in memory.states] == [(B, 0, D)] * L
    assert np.array(memory.valid_length).tolist() == [0] * B


def test_blocks_have_memories_of_their_own():
    stack = MemoryStack(L, B, M, D)
    stack(segment(0, 5), layer=0)
    stack(segment(10, 15), layer=1)
    memory = stack.read()
    assert positions(memory.states[0])[0] == [0, 1, 2, 3, 4]
    assert positions(memory.states[1])[0] == [10, 11, 12, 13, 14]
    for inputs in (segment(0, 5), keras.Input((5, D), batch_size=B)):
        with pytest.raises(ValueError, match="`layer` must be.*num_layers=2"):
            stack(inputs)


def test_a_cold_start_is_masked_or_zeros():
    masked, zeros = MemoryStack(1, B, M, D), MemoryStack(1, B, M, D, "zeros")
    for stack, seen in ((masked, False), (zeros, True)):
        memory, mask = stack(segment(1, 3))
        assert np.array(mask).tolist() == [[seen] * M] * B
        assert positions(memory) == [[0] * M] * B
        _, mask = stack(segment(3, 4))
        assert np.array(mask).tolist() == [[seen] * 3 + [True] * 2] * B


@pytest.mark.parametrize(
    "batch_size, dtype", [(None, "float32"), (B, "mixed_bfloat16")]
)
def test_a_model_with_memory_is_trained(batch_size, dtype):
    inputs = keras.Input((4, D), batch_size=batch_size)
    stack = MemoryStack(1, batch_size, M, D, dtype=dtype)
    memory, mask = stack(inputs)
    attend = RelativeMultiHeadAttention(2, 3, dtype=dtype)
    model = keras.Model(inputs, attend(inputs, memory=memory, memory_mask=mask))
    model.compile("sgd", "mse")
    x = np.concatenate([segment(0, 4), segment(4, 8)]) / 300
    history = model.fit(
        x, -x, batch_size=B, epochs=2, shuffle=False, verbose=0
    ).history
    assert history["loss"][1] < history["loss"][0]
    remembered = np.array(ops.cast(stack.read().states[0], "float32"))
    np.testing.assert_allclose(remembered[:, 1:], x[B:], rtol=0.01)


def test_more_rows_begin_and_fewer_go_on_with_the_first():
    stack = MemoryStack(1, None, M, D)
    stack(segment(0, 5, rows=2))
    memory, mask = stack(segment(5, 10, rows=3))
    assert positions(memory)[:2] == [[0, 1, 2, 3, 4], [100, 101, 102, 103, 104]]
    assert np.array(mask).tolist() == [[True] * M] * 2 + [[False] * M]
    memory, mask = stack(segment(10, 15, rows=1))
    assert positions(memory) == [[5, 6, 7, 8, 9]]
    assert np.array(mask).all()
    assert positions(stack.read().states[0]) == [
        [10, 11, 12, 13, 14],
        [105, 106, 107, 108, 109],
        [205, 206, 207, 208, 209],
    ]


@pytest.mark.tensorflow
def test_memory_is_no_part_of_the_weights(tmp_path):
    stack = MemoryStack(L, B, M, D)
    inputs = keras.Input((2, D), batch_size=B)
    memory, _ = stack(keras.layers.Dense(D, name="dense")(inputs), layer=1)
    model = keras.Model(inputs, memory)
    model(segment(0, 2))
    assert [w.path for w in model.weights] == ["dense/kernel", "dense/bias"]
    assert stack.weights == [] and stack.variables == []
    assert len(stack.state_variables) == 2 * L

    checkpoint = tf.train.Checkpoint(model=model, stack=stack)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    shapes = [tuple(shape) for _, shape in tf.train.list_variables(path)]
    assert sorted(shapes) == [(), (D,), (D, D)]  # () is the object graph


@pytest.mark.parametrize("rows", [1, B + 1])
def test_a_batch_of_another_size_is_an_error(rows):
    stack = MemoryStack(1, B, M, D)
    x = segment(0, 2, rows=rows)
    with pytest.raises(ValueError, match=rf"{B}.*\({rows}, 2, 4\)"):
        stack(x)
    inputs = keras.Input((2, D + 1), batch_size=B)
    with pytest.raises(ValueError, match=rf"`inputs`.*{D}\).*{D + 1}\)"):
        stack(inputs)
    if not ON_TENSORFLOW:
        return
    run = tf.function(stack, input_signature=[tf.TensorSpec((None, 2, D))])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"batch_size={B}.*drop_remainder"
    ):
        run(x)
    memory, _ = run(segment(0, 2))
    assert memory.shape == (B, M, D)
