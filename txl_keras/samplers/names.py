"""Samplers by name."""

from txl_keras.checks import shown
from txl_keras.samplers.beam_sampler import BeamSampler
from txl_keras.samplers.sampler import Sampler


def get(sampler):
    """Returns a sampler by its name.

    The names and their parameters are those of `keras_hub.samplers`:

    - `"random"`: `Sampler()`, draws from the distribution of the model
    - `"greedy"`: `Sampler(temperature=0)`
    - `"top_k"`: `Sampler(top_k=5)`
    - `"top_p"`: `Sampler(top_p=0.1)`
    - `"beam"`: `BeamSampler(num_beams=5)`

    Args:
        sampler: One of these names, or a `Sampler` or `BeamSampler`, which is
            returned as it is.

    Returns:
        A `Sampler` or a `BeamSampler`.

    Example:

    >>> get("greedy").temperature
    0
    """
    named = {
        "random": Sampler(),
        "greedy": Sampler(temperature=0),
        "top_k": Sampler(top_k=5),
        "top_p": Sampler(top_p=0.1),
        "beam": BeamSampler(num_beams=5),
    }
    if isinstance(sampler, str) and sampler in named:
        return named[sampler]
    if not isinstance(sampler, (Sampler, BeamSampler)):
        raise ValueError(
            f"`sampler` must be one of {', '.join(named)}, or a Sampler or "
            "BeamSampler of `txl_keras.samplers`. Received: "
            f"sampler={shown(sampler)}"
        )
    sampler.get_config()  # raises an error for tensors now, not in `save`
    return sampler
