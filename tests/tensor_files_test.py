"""Files of safetensors, compared with those of the package."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from txl_keras.tensor_files import int8_with_scale
from txl_keras.tensor_files import read_safetensors
from txl_keras.tensor_files import write_safetensors

ARRAYS = {
    "b/kernel": np.arange(6, dtype="float32").reshape(2, 3),
    "a": np.float32(7),
    "empty": np.zeros((0, 4), "float32"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_package_reads_what_is_written(dtype, tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {**ARRAYS, "third": np.float32([1 / 3])}
    write_safetensors(arrays, path, {"format": "pt"}, dtype)
    read = safetensors.numpy.load_file(path)
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read[name].dtype == dtype
        np.testing.assert_array_equal(read[name], array.astype(dtype))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16, "i8"])
def test_what_the_package_writes_is_read(dtype, tmp_path):
    arrays = {name: np.asarray(a, dtype) for name, a in ARRAYS.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors")
    tensors = read_safetensors(tmp_path / "a.safetensors")
    assert tensors.shapes == {"b/kernel": (2, 3), "a": (), "empty": (0, 4)}
    if dtype == "i8":
        with pytest.raises(ValueError, match="'a' must be of floats.*int64"):
            tensors["a"]
        return
    for name, array in arrays.items():
        assert tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(tensors[name], array)


@pytest.mark.parametrize(
    "shape, scale_shape, factors",
    [
        ((5, 3), (5, 1), [[1], [2e3], [0], [1e-9], [4]]),
        ((5, 3), (1, 3), [[7, 1e-3, 1e5]]),
        # A projection to 2 heads of size 3, and one from them.
        ((7, 2, 3), (1, 2, 3), np.reshape(10.0 ** np.arange(6), (2, 3))),
        ((2, 3, 7), (1, 1, 7), 10.0 ** np.arange(7)),
        ((2, 3, 7), (2, 3, 1), np.reshape(10.0 ** np.arange(6), (2, 3, 1))),
    ],
)
def test_int8_has_scales_per_row_or_column_whichever_lose_less(
    shape, scale_shape, factors, tmp_path
):
    draws = np.random.default_rng(4).normal(size=shape)
    array = np.float32(draws * factors)
    stored = int8_with_scale("a", array)
    assert stored["a"].dtype == "int8"
    assert stored["a/scale"].shape == scale_shape
    write_safetensors(stored, tmp_path / "a.safetensors")
    tensors = read_safetensors(tmp_path / "a.safetensors")
    assert tensors.shapes == {"a": shape}
    axes = tuple(np.flatnonzero(np.array(scale_shape) == 1).tolist())
    largest = np.abs(array).max(axes, keepdims=True)
    error = np.abs(tensors["a"] - array)
    assert (error <= largest * (0.5 / 127 + 1e-6)).all()


def test_int8_without_scales_can_be_skipped_but_not_loaded(tmp_path):
    stored = {"a": np.int8([[3]]), "b": np.float32([4])}
    write_safetensors(stored, tmp_path / "a.safetensors")
    tensors = read_safetensors(tmp_path / "a.safetensors")
    assert tensors["b"] == 4
    with pytest.raises(ValueError, match="'a' must be of floats.*int8"):
        tensors["a"]


def test_every_cut_and_every_longer_file_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors(ARRAYS, path)
    data = path.read_bytes()
    for wrong in (*(data[:n] for n in range(0, len(data), 7)), data + b"\0"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="damaged or cut short"):
            read_safetensors(path)
