"""Fast implementations of attention behind one function.

A layer projects its inputs, describes one attention as a `Problem` (with
`Visible` as its mask), and calls `attend`. The `Target`, the device that the
graph runs on, determines the implementation:

- `blocks`: blocks of queries, for CPUs.
- `tiles`: all queries at once, compiled by XLA. Supports every problem.
- `Target.attention`: a registered one, see docs/extending.md.

The first two are written in TensorFlow. They return the same numbers as
`definition`, the equation of the paper in `keras.ops`, which is the reference
in tests and the only implementation on other backends. `attend` does not return
probabilities; layers that need them call `definition` directly.

Each aligns the scores by distance with the keys (the shift of appendix B) in
its fastest form: `definition` by `relative_shift`, as printed in the paper;
`tiles` by a reshape (`_tiles_by_key`) or, like `blocks`, by a shear
(`rows_to_shear`).
"""

from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.layers.compute import blocks
from txl_keras.layers.compute import definition
from txl_keras.layers.compute import target
from txl_keras.layers.compute import tiles


def attend(problem):
    """Computes attention `(B, T, N, H)` with the implementation that fits.

    If all keys of a query are masked, its output is some mean of values.
    """
    if not ON_TENSORFLOW:
        parts = [definition.attend(x) for x in blocks.split(problem)]
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1)
    for implementation in (target.current().attention, blocks):
        if implementation and implementation.supports(
            problem, target.current()
        ):
            return implementation.attend(problem)
    return tiles.attend(problem)
