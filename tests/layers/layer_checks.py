"""What every Keras layer owes its user, in one call."""

import json
import os

import keras
import numpy as np
from factories import assert_same
from keras import ops

_FLOATS = {
    "mixed_bfloat16": ("bfloat16", 0.05),
    "mixed_float16": ("float16", 0.01),
}


def check_layer(
    layer_class,
    config,
    inputs,
    num_weights,
    folder,
    float32_outputs=(),
    batch_outputs=True,
):
    """Runs all checks.

    Args:
        layer_class: Class under test.
        config: Dictionary, all arguments whose values must come back.
        inputs: Dictionary of call argument to array, in the order of `call`.
        num_weights: Integer, how many weights the layer has.
        folder: Where files may be written.
        float32_outputs: Positions of outputs that are float32 always.
        batch_outputs: Boolean, whether the first output has a batch axis.
    """
    layer = layer_class(**config)
    outputs = _call(layer, inputs)
    assert len(layer.weights) == num_weights
    assert all(np.isfinite(x).all() for x in outputs)
    _check_config(layer, config)
    _check_shapes(layer, inputs, outputs)
    _check_saving(layer, inputs, outputs, folder)
    for policy in _FLOATS:
        _check_precision(layer, inputs, outputs, policy, float32_outputs)
    if batch_outputs:
        _check_fit(layer_class(**config), inputs, outputs[0].shape)


def _call(layer, inputs):
    if hasattr(layer, "reset_state"):
        layer.reset_state()
    outputs = _run(layer, inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [keras.ops.convert_to_numpy(x) for x in outputs]


def _run(layer, inputs):
    first, *others = inputs
    return layer(inputs[first], **{name: inputs[name] for name in others})


def _check_config(layer, config):
    stored = json.loads(json.dumps(layer.get_config()))
    for name, value in config.items():
        assert stored[name] == value, name
    revived = type(layer).from_config(stored)
    assert json.loads(json.dumps(revived.get_config())) == stored


def _symbolic(inputs, sizes_known):
    """Inputs of known sizes, or of which only the last axis is known."""

    def shape(x):
        return (
            x.shape if sizes_known else (*(None,) * (x.ndim - 1), *x.shape[-1:])
        )

    return {
        name: keras.Input(batch_shape=shape(x), dtype=x.dtype, name=name)
        for name, x in inputs.items()
    }


def _check_shapes(layer, inputs, outputs):
    symbolic = _symbolic(inputs, sizes_known=True)
    specs = _run(layer, symbolic)
    specs = specs if isinstance(specs, tuple) else (specs,)
    assert [x.shape for x in specs] == [x.shape for x in outputs]
    assert [x.dtype for x in specs] == [str(x.dtype) for x in outputs]


def _check_saving(layer, inputs, outputs, folder):
    layer.trainable = False
    sizes_known = bool(getattr(layer, "batch_size", None))
    symbolic = _symbolic(inputs, sizes_known)
    model = keras.Model(symbolic, _run(layer, symbolic))
    path = os.path.join(folder, "model.keras")
    model.save(path)
    loaded = keras.saving.load_model(path)
    layer.trainable = True
    assert len(loaded.weights) == len(layer.weights)
    assert not loaded.trainable_weights
    results = loaded({name: ops.array(x) for name, x in inputs.items()})
    results = results if isinstance(results, (tuple, list)) else [results]
    assert_same(results, outputs, atol=1e-5)


def _check_precision(layer, inputs, outputs, policy, float32_outputs):
    compute_dtype, tolerance = _FLOATS[policy]
    lower = type(layer).from_config({**layer.get_config(), "dtype": policy})
    lower.build(next(iter(inputs.values())).shape)
    lower.set_weights(layer.get_weights())
    assert all(weight.dtype == "float32" for weight in lower.weights)
    for i, (result, expected) in enumerate(
        zip(_call(lower, inputs), outputs, strict=True)
    ):
        if expected.dtype == "float32":
            wanted = "float32" if i in float32_outputs else compute_dtype
            assert result.dtype == wanted
        result = result.astype("float32")
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            result, expected.astype("float32"), atol=tolerance * scale
        )


def _check_fit(layer, inputs, output_shape):
    """One step through the layer moves all its weights, and those before."""
    symbolic = _symbolic(inputs, sizes_known=True)
    first = next(iter(inputs))
    before = keras.layers.Dense(inputs[first].shape[-1], name="before")
    outputs = _run(layer, {**symbolic, first: before(symbolic[first])})
    if isinstance(outputs, tuple):
        outputs = outputs[0]
    model = keras.Model(symbolic, keras.layers.Dense(1)(outputs))
    # Other tests trace graphs of the layers, which takes seconds.
    model.compile("sgd", "mse", run_eagerly=True)
    old = [weight.numpy() for weight in layer.trainable_weights]
    history = model.fit(
        inputs,
        np.ones((*output_shape[:-1], 1)),
        batch_size=output_shape[0],
        shuffle=False,
        verbose=0,
    )
    assert np.isfinite(history.history["loss"]).all()
    for weight, value in zip(layer.trainable_weights, old, strict=True):
        assert np.abs(weight.numpy() - value).max() > 0, weight.path
