"""Sizes of published models, by name.

Weights are not part of a preset: they come from training or a checkpoint.
Sources: the original repository's TensorFlow scripts (`*_base_gpu.sh`,
`*_large_tpu.sh`) and table 1 and 2 of Dai et al., 2019.
"""

_BASE = {
    "num_layers": 12,
    "num_heads": 8,
    "hidden_dim": 512,
    "intermediate_dim": 2048,
    "memory_length": 512,
    "dropout": 0.1,
}
_LARGE = {
    "num_layers": 24,
    "num_heads": 8,
    "hidden_dim": 1024,
    "intermediate_dim": 3072,
    "memory_length": 768,
    "dropout": 0.15,
    "attention_dropout": 0.15,
}

# Vocabularies: bytes; enwik8 without newlines; a to z and the space.
_PRESETS = {
    # What two CPU cores train best in a few minutes: our choice.
    "quickstart": {
        "vocabulary_size": 256,
        "num_layers": 4,
        "num_heads": 2,
        "hidden_dim": 128,
        "intermediate_dim": 512,
        "memory_length": 128,
    },
    "enwik8_base": {"vocabulary_size": 204, **_BASE},  # 41,055,436 weights
    "enwik8_large": {"vocabulary_size": 204, **_LARGE},  # 277,231,820
    "text8_base": {"vocabulary_size": 27, **_BASE},  # 40,964,635
    "text8_large": {"vocabulary_size": 27, **_LARGE},  # 277,050,395
}


def names():
    """Names of all presets, in the order of their size and corpus."""
    return list(_PRESETS)


def preset_config(name):
    """Arguments of `TransformerXLCausalLM.from_preset` for a preset.

    Args:
        name: String, one of `names()`.

    Returns:
        Dictionary, the caller's own.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in _PRESETS:
        raise ValueError(
            f"`preset` must be one of {names()}. Received: preset={name!r}"
        )
    return dict(_PRESETS[name])
