"""Beam search as the sampler of a model."""

import dataclasses

import keras

from txl_keras.checks import check_integer


@keras.saving.register_keras_serializable(package="txl_keras")
@dataclasses.dataclass(frozen=True)
class BeamSampler:
    """Searches for the most likely text with `num_beams` beams.

    In each step it keeps the `num_beams` texts with the largest sums of
    log-probabilities. A text that has ended competes with its sum unchanged,
    so there is no preference for long texts. The best text is returned. With
    one beam this is greedy search.

    Args:
        num_beams: Integer, at least 1.

    Example:

    ```python
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.samplers import BeamSampler

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    model.compile(sampler=BeamSampler(num_beams=3))
    ids = model.generate([5, 6, 7], max_new_tokens=4)  # (7,)
    ```
    """

    num_beams: int = 5

    def __post_init__(self):
        check_integer("num_beams", self.num_beams, 1)

    def get_config(self):
        """Returns the parameters, for saving."""
        return {"num_beams": int(self.num_beams)}

    @classmethod
    def from_config(cls, config):
        return cls(**config)
