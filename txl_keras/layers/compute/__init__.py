"""How attention is computed: four ways, one door.

A layer projects, says all there is to say in a `Problem`, and calls `attend`,
which takes the first way that knows the problem and suits the `Target`:
`pallas`, `blocks`, `tiles`. All give the numbers of `definition`.
"""

from txl_keras.layers.compute import blocks
from txl_keras.layers.compute import pallas
from txl_keras.layers.compute import target
from txl_keras.layers.compute import tiles


def attend(problem):
    """Computes an attention, in the way that suits where it runs.

    Args:
        problem: `Problem`.

    Returns:
        Tensor `(B, T, N, H)`. A query that may see no key gets some mean of
        values.
    """
    for way in (pallas, blocks):
        if way.supports(problem, target.current()):
            return way.attend(problem)
    return tiles.attend(problem)
