"""The model that is timed."""

from txl_keras.models import presets
from txl_keras.scripts import model_flags
from txl_keras.scripts import training_flags


def build_model(settings):
    """Builds the model of the flags, with random weights.

    Without dropout, unless a flag asks for it: presets have that of a run,
    which the others that are timed have not all.

    Args:
        settings: `absl.flags.FLAGS`, of train/benchmark.py.

    Returns:
        `TransformerXLCausalLM`.

    Raises:
        ValueError: If a flag is not what the model expects.
    """
    if settings.cutoffs == ["auto"]:
        raise ValueError(
            "`cutoffs` must be named here, as there is no text to count. "
            "Received: cutoffs=auto"
        )
    for name in ("dropout", "attention_dropout"):
        if settings[name].value is None:
            settings[name].value = 0.0
    vocabulary_size = settings.vocabulary_size
    if vocabulary_size is None:
        preset = presets.preset_config(settings.preset)
        vocabulary_size = preset["vocabulary_size"]
    return model_flags.build_model(
        vocabulary_size, None, training_flags.dtype_policy()
    )
