"""Presets by name: sizes of published models, and trained models.

`PRESETS` have sizes and no weights. `TRAINED` are folders with weights that
come with the package; they are read like any other folder.
Sources: the original repository's TensorFlow scripts (`*_base_gpu.sh`,
`*_large_tpu.sh`), tables 1 to 5 of Dai et al., 2019, and NVIDIA's PyTorch
configurations. The comment above each preset is its number of weights.
"""

import numbers
import pathlib
import types

import keras

from txl_keras.layers.config import parameters


def _sizes(layers, heads, hidden_dim, intermediate_dim, memory, **others):
    """Returns the arguments of a backbone of these sizes."""
    return {
        "num_layers": layers,
        "num_heads": heads,
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        "memory_length": memory,
        **others,
    }


_CHARACTERS_BASE = _sizes(12, 8, 512, 2048, 512, dropout=0.1)
_CHARACTERS_LARGE = _sizes(
    24, 8, 1024, 3072, 768, dropout=0.15, attention_dropout=0.15
)
_WIKITEXT103 = {
    "vocabulary_size": 267_735,
    "cutoffs": (20_000, 40_000, 200_000),
}
# The head of 19,997 words and 3 entries for the tails has 20,000 rows, a
# multiple of 8.
_WIKITEXT103_NVIDIA = {
    "vocabulary_size": 267_735,
    "cutoffs": (19_997, 39_997, 199_997),
}
_WIKITEXT103_LARGE = _sizes(
    18, 16, 1024, 4096, 384,
    div_val=4,
    projection_initializer_stddev=0.01,
    tie_projections="all_but_first",
    dropout=0.2,
    attention_dropout=0.2,
    initializer_stddev=0.005,
)  # fmt: skip
_LM1B = {
    "vocabulary_size": 793_472,
    "cutoffs": (60_000, 100_000, 640_000),
    "div_val": 4,
    "projection_initializer_stddev": 0.01,
    "project_same_dim": False,
    "tie_projections": False,
    "tie_attention_biases": False,
}


# Vocabulary sizes of character models: 256 bytes; 204 symbols of enwik8 without
# newlines; 27 symbols of text8, a to z and the space.
_SIZES = {
    # Our choice: the best model that two CPU cores train in a few minutes.
    "quickstart": _sizes(4, 2, 128, 512, 128, vocabulary_size=256),
    # 41,055,436
    "enwik8_base": {"vocabulary_size": 204, **_CHARACTERS_BASE},
    # 87,965,708. The paper gives 18 layers and 88M; the rest is our choice.
    "enwik8_18_layers": _sizes(
        18, 10, 640, 2208, 512, vocabulary_size=204, dropout=0.1
    ),
    # 277,231,820
    "enwik8_large": {"vocabulary_size": 204, **_CHARACTERS_LARGE},
    # 40,964,635
    "text8_base": {"vocabulary_size": 27, **_CHARACTERS_BASE},
    # 277,050,395
    "text8_large": {"vocabulary_size": 27, **_CHARACTERS_LARGE},
    # 151,119,838. The PyTorch code ties the attention biases and has
    # 151,107,538.
    "wikitext103_base": _sizes(
        16, 10, 410, 2100, 150,
        **_WIKITEXT103, tie_attention_biases=False, dropout=0.1,
    ),
    # 285,205,322. The paper reports 257M, which its code does not reproduce.
    "wikitext103_large": {
        **_WIKITEXT103,
        **_WIKITEXT103_LARGE,
        "tie_attention_biases": False,
    },
    # 191,950,298
    "wikitext103_nvidia_base": _sizes(
        16, 8, 512, 2048, 192, **_WIKITEXT103_NVIDIA, dropout=0.1
    ),
    # 285,167,482
    "wikitext103_nvidia_large": {**_WIKITEXT103_NVIDIA, **_WIKITEXT103_LARGE},
    # 355,749,763
    "lm1b_base": _sizes(18, 8, 1024, 4096, 256, **_LM1B, dropout=0.1),
    # 838,078,083
    "lm1b_large": _sizes(
        24, 16, 1280, 8192, 32,
        **_LM1B,
        dropout=0.05,
        attention_dropout=0.05,
        initializer_stddev=0.005,
    ),
    # 23,845,904. The paper gives only the total, 24M; all sizes are our choice.
    "ptb_24m": _sizes(
        14, 8, 384, 896, 70,
        vocabulary_size=10_000, dropout=0.4, attention_dropout=0.2,
    ),
}  # fmt: skip


PRESETS = types.MappingProxyType(
    {name: types.MappingProxyType(sizes) for name, sizes in _SIZES.items()}
)
_FOLDER = pathlib.Path(__file__).parents[1] / "trained"
TRAINED = types.MappingProxyType(
    {
        path.parent.name: str(path.parent)
        for path in sorted(_FOLDER.glob("*/config.json"))
    }
)


def build_preset(model_class, name, dtype, overrides, backbone_class=None):
    """Builds a model with the sizes of a preset and new weights."""
    config = PRESETS[name]
    backbone_class = backbone_class or default_backbone(model_class)
    own, sizes = split_overrides(model_class, overrides, backbone_class)
    size = getattr(own.get("tokenizer"), "vocabulary_size", None)
    if isinstance(size, numbers.Integral):
        sizes.setdefault("vocabulary_size", size)

    def build(part, *args, **given):
        kept = config.keys() & arguments(part)
        return part(*args, **{**{key: config[key] for key in kept}, **given})

    backbone = build(backbone_class, dtype=dtype, **sizes)
    if issubclass(backbone_class, model_class):
        return backbone
    return build(model_class, backbone, **own)


def default_backbone(model_class):
    """Returns the backbone class of a preset."""
    return next(iter(model_class.backbone_classes), model_class)


def arguments(model_class):
    """Returns the parameters of a model class, by name."""
    return parameters(model_class, keras.Model)


def required_arguments(model_class):
    """Returns the names of the parameters without a default."""
    found = arguments(model_class).values()
    return {p.name for p in found if p.default is p.empty}


def split_overrides(model_class, overrides, backbone_class, given=()):
    """Splits overrides between the model and its backbone; checks them."""
    # Arguments without a default may be in `given` instead.
    own = set(arguments(model_class))
    own = own - {"backbone"} if "backbone" in own else set()
    missing = own & required_arguments(model_class) - {*overrides, *given}
    if own:  # it is not a backbone
        own |= {"name"}
    known = sorted({*arguments(backbone_class), *own, "dtype", "name"})
    unknown = sorted(overrides.keys() - {*known})
    if unknown:
        raise ValueError(
            "Arguments of `from_preset`, and flags of the model, must be those "
            f"of a {backbone_class.__name__}: {known}. Received: {unknown}"
        )
    if missing:
        raise ValueError(
            f"{sorted(missing)} must be passed to `from_preset`, since the "
            f"preset has no value for a {model_class.__name__}. Received: "
            f"{sorted(overrides)}"
        )
    return (
        {key: value for key, value in overrides.items() if key in own},
        {key: value for key, value in overrides.items() if key not in own},
    )
