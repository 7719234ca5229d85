"""How the tensors of a foreign checkpoint and our weights correspond.

A layout is a list of `Entry`, one for every foreign tensor. It is data, read
in both directions: loading, checking and writing share it.
"""

import collections.abc
import dataclasses
import math

import numpy as np
import tensorflow as tf

from txl_keras.models.weights import weights_by_name


@dataclasses.dataclass(frozen=True)
class Entry:
    """A foreign tensor, and the weights of ours that it holds.

    From foreign to ours: transpose, then flip, then cut into the parts that
    `ours` names, then give each the shape of its weight.

    Args:
        names: Tuple of strings. What the tensor is called in the file. Where
            the foreign model shares it, the file has it under one of these
            names or under several, and it is the same in all.
        ours: Tuple of strings, the names of our weights, in order.
        shape: Tuple of integers, of the foreign tensor.
        transposed: Boolean. Linear layers of PyTorch are `(out, in)`.
        flipped: Optional integer, an axis whose order is the reverse of ours.
        axis: Integer, along which the parts lie, after the transposition.

    Example:

    ```python
    from txl_keras.checkpoints.layout import Entry

    # Of D = 4, N = 2, H = 3: a foreign matrix (18, 4), three of ours (4, 2, 3).
    entry = Entry(
        names=("layers.0.dec_attn.qkv_net.weight",),
        ours=("query", "key", "value"), shape=(18, 4), transposed=True, axis=1,
    )
    ```
    """

    names: tuple
    ours: tuple
    shape: tuple
    transposed: bool = False
    flipped: int | None = None
    axis: int = 0

    def split(self, array, shapes):
        """Our weights, of the given shapes, from the foreign tensor."""
        if self.transposed:
            array = array.T
        if self.flipped is not None:
            array = np.flip(array, self.flipped)
        parts = np.split(array, self._cuts(shapes), self.axis)
        return [
            part.reshape(shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]

    def join(self, weights):
        """The foreign tensor from our weights."""
        shape = self._oriented_shape()
        sizes = np.diff([0, *self._cuts([w.shape for w in weights])])
        sizes = [*sizes, shape[self.axis] - sum(sizes)]
        array = np.concatenate(
            [
                np.reshape(weight, _with_size(shape, self.axis, size))
                for weight, size in zip(weights, sizes, strict=True)
            ],
            self.axis,
        )
        if self.flipped is not None:
            array = np.flip(array, self.flipped)
        return np.ascontiguousarray(array.T if self.transposed else array)

    def _oriented_shape(self):
        return self.shape[::-1] if self.transposed else self.shape

    def _cuts(self, shapes):
        """Where all parts but the first begin."""
        across = math.prod(_with_size(self._oriented_shape(), self.axis, 1))
        sizes = [math.prod(shape) // across for shape in shapes[:-1]]
        return np.cumsum(sizes, dtype=int)


def _with_size(shape, axis, size):
    return (*shape[:axis], int(size), *shape[axis + 1 :])


class Tensors(collections.abc.Mapping):
    """The tensors of a file: shapes at once, values when they are asked for.

    Args:
        shapes: Dictionary from name to shape.
        load: Function of a name that returns an array.
    """

    def __init__(self, shapes, load):
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._load = load

    def __getitem__(self, name):
        return np.asarray(self._load(name), np.float32)

    def __contains__(self, name):
        # Of a mapping it would read the tensor.
        return name in self.shapes

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)

    def renamed(self, rename):
        """The same tensors under other names, less those named `None`.

        Args:
            rename: Function of a name.

        Returns:
            `Tensors`.
        """
        old = {rename(name): name for name in self.shapes}
        old.pop(None, None)
        return Tensors(
            {new: self.shapes[name] for new, name in old.items()},
            lambda new: self._load(old[new]),
        )


def read(model, layout, tensors, source):
    """Assigns all weights of a model from a file, or none.

    Args:
        model: Keras model, such as `TransformerXLCausalLM`.
        layout: List of `Entry` that covers its weights.
        tensors: `Tensors` of the file; one is in memory at a time.
        source: What to call the file in an error.

    Raises:
        ValueError: If the file does not fit the layout. The message lists all
            that is missing, unexpected, of a wrong shape, not finite, or
            different where it should be tied.
    """
    weights = _covered_weights(model, layout)
    problems = [*_problems_of_names(layout, tensors)]
    for entry in layout:
        problems += _problems_of_values(entry, tensors)
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise ValueError(
            f"{source} does not fit its configuration. Nothing was loaded: "
            f"{len(problems)} problem(s).\n{lines}"
        )
    for entry in layout:
        name = next(name for name in entry.names if name in tensors)
        targets = [weights[ours] for ours in entry.ours]
        parts = entry.split(tensors[name], [tuple(w.shape) for w in targets])
        for weight, part in zip(targets, parts, strict=True):
            weight.assign(tf.cast(part, weight.dtype))


def write(model, layout):
    """The foreign tensors of a model, each under the first of its names.

    Args:
        model: Keras model, such as `TransformerXLCausalLM`.
        layout: List of `Entry` that covers its weights.

    Returns:
        Dictionary from foreign name to float32 array.
    """
    weights = _covered_weights(model, layout)
    tensors = {}
    for entry in layout:
        arrays = [np.asarray(weights[ours], np.float32) for ours in entry.ours]
        tensors[entry.names[0]] = entry.join(arrays)
    return tensors


def _covered_weights(model, layout):
    weights = weights_by_name(model)
    covered = [ours for entry in layout for ours in entry.ours]
    if sorted(covered) != sorted(weights):
        # A weight left out would stay random without a word.
        raise ValueError(
            "The layout must name every weight of the model once. Received: "
            f"layout={sorted(covered)}, weights={sorted(weights)}"
        )
    return weights


def _problems_of_names(layout, tensors):
    for entry in layout:
        if not any(name in tensors for name in entry.names):
            yield f"missing: {' or '.join(entry.names)} of shape {entry.shape}"
    known = {name for entry in layout for name in entry.names}
    for name in sorted(set(tensors) - known):
        yield f"unexpected: {name} of shape {tensors.shapes[name]}"


def _problems_of_values(entry, tensors):
    """Problems of one foreign tensor; reads it, so that they show early."""
    present = [name for name in entry.names if name in tensors]
    fitting = [n for n in present if tensors.shapes[n] == entry.shape]
    for name in present:
        if name not in fitting:
            yield (
                f"wrong shape: {name} is {tensors.shapes[name]}, expected "
                f"{entry.shape}"
            )
    first = tensors[fitting[0]] if fitting else np.zeros(())
    if not np.isfinite(first).all():
        yield f"not finite: {fitting[0]} holds NaN or infinity"
    for name in fitting[1:]:
        if not np.array_equal(first, tensors[name]):
            yield (
                "tied in the configuration, but different in the file: "
                f"{fitting[0]} and {name}"
            )
