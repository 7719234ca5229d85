"""Builds the model that a benchmark times."""

from txl_keras.models import presets
from txl_keras.scripts import model_flags
from txl_keras.scripts import training_flags


def build_model(settings):
    """Builds the model that the flags describe, with random weights."""
    # Ignores the preset's dropout, which not all contenders implement: only a
    # flag turns it on.
    if settings.cutoffs == ["auto"]:
        raise ValueError(
            "`cutoffs` must be a list of integers: a benchmark has no text "
            "whose tokens could be counted. Received: cutoffs=auto"
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
