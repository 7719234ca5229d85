"""Saves which layers of a model are quantized, and restores it.

Keras's own way, a `DTypePolicyMap` in the config, cannot save a model that was
loaded (Keras 3.15).
"""

import keras


def quantization_config(model):
    """Returns what a model's config says of its quantized layers.

    Layers of another model inside of this one are in its own config.
    """
    quantized = {
        path: {
            "mode": layer.quantization_mode,
            "config": keras.saving.serialize_keras_object(
                getattr(layer, "quantization_config", None)
            ),
            # An int8 kernel cannot hold the matrices of LoRA: see `Dense`.
            "lora": [layer.lora_rank, layer.lora_alpha]
            if getattr(layer, "lora_enabled", False)
            else None,
        }
        for path, layer in _layers(model).items()
        if layer.quantization_mode is not None
    }
    return {"quantization": quantized} if quantized else {}


def quantize_layers(model, quantized):
    """Quantizes the layers of a new model as its config says."""
    layers = _layers(model)
    for path, how in quantized.items():
        config = keras.saving.deserialize_keras_object(how["config"])
        layers[path].quantize(how["mode"], config=config)
        if how["lora"] is not None:
            rank, alpha = how["lora"]
            layers[path].enable_lora(rank, lora_alpha=alpha)


def _layers(model):
    """Returns the layers by their paths in the model, in a stable order."""
    parts = {
        layer.path: layer
        for layer in model._flatten_layers(include_self=False)
        if layer.path is not None
    }
    prefix = f"{model.name}/"
    return {
        path.removeprefix(prefix): parts[path]
        for path in sorted(parts)
        if path.startswith(prefix)
    }
