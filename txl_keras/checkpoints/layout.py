"""Layouts, which map the tensors of a foreign checkpoint to our weights.

A layout is a list of `Entry`, one per foreign tensor. Loading, checking and
writing share it.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from txl_keras.checks import shown
from txl_keras.weights import to_tensor
from txl_keras.weights import weights_by_name

_MIN_ITEM_BYTES = 2
# An error lists at most this many problems.
_MAX_PROBLEMS = 50


@dataclasses.dataclass
class Entry:
    """Maps one foreign tensor to the weights of ours that it holds.

    To load, the tensor is transposed, flipped and split along `axis` into one
    part per weight, and each part is reshaped to its weight.
    """

    # Name in the file, or names: a shared tensor may have one of them or
    # several.
    names: str | list
    # Path of our weight, or paths of several, in order.
    weights: str | list
    # Shape of the foreign tensor.
    shape: tuple
    # True for PyTorch's linear layers, which are `(out, in)`.
    transposed: bool = False
    # Axis whose order is the reverse of ours.
    flipped: int | None = None
    # Axis of the split, after transposing.
    axis: int = 0

    def __post_init__(self):
        if isinstance(self.names, str):
            self.names = (self.names,)
        if isinstance(self.weights, str):
            self.weights = (self.weights,)

    def split(self, array, shapes):
        """Returns our weights, of the given shapes, from the foreign tensor."""
        if self.transposed:
            array = array.T
        if self.flipped is not None:
            array = np.flip(array, self.flipped)
        # Parts are as long along the axis as their weights are large.
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        cuts = ends[:-1] * array.shape[self.axis] // max(ends[-1], 1)
        parts = np.split(array, cuts, self.axis)
        return [
            part.reshape(shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]

    def join(self, weights):
        """Returns the foreign tensor from our weights."""
        shape = [*(self.shape[::-1] if self.transposed else self.shape)]
        if len(weights) > 1:
            shape[self.axis] = -1
        parts = [np.reshape(weight, shape) for weight in weights]
        array = np.concatenate(parts, self.axis)
        if self.flipped is not None:
            array = np.flip(array, self.flipped)
        return np.ascontiguousarray(array.T if self.transposed else array)


def feed_forward_and_norms(names, i, backbone, is_torch=True):
    """Yields the entries of block `i` that all implementations have."""
    # `names` are those of two layer norms and of the two linear layers.
    size, inner = backbone.hidden_dim, backbone.intermediate_dim
    norms, dense = (".weight", ".bias"), (".weight", ".bias")
    if not is_torch:
        norms, dense = ("/gamma", "/beta"), ("/kernel", "/bias")
    for name, part, shape in (
        (names[2], "feed_forward_intermediate", (size, inner)),
        (names[3], "feed_forward_output", (inner, size)),
    ):
        weight = f"block_{i}/{part}"
        bias = Entry(name + dense[1], f"{weight}/bias", shape[1:])
        shape = shape[::-1] if is_torch else shape
        yield Entry(name + dense[0], f"{weight}/kernel", shape, is_torch)
        yield bias
    for name, part in zip(names, ("attention", "feed_forward"), strict=False):
        weight = f"block_{i}/{part}_norm"
        yield Entry(name + norms[0], f"{weight}/gamma", (size,))
        yield Entry(name + norms[1], f"{weight}/beta", (size,))


def read(build, layout, tensors, source):
    """Builds a model and loads its weights, if the file fits the layout."""
    problems = [*_problems_of_shapes(layout, tensors)]
    matching = [entry for entry in layout if _matching_names(entry, tensors)]
    # Overlapping tensors in a small file could ask for any amount of memory.
    num_values = sum(math.prod(entry.shape) for entry in matching)
    if num_values * _MIN_ITEM_BYTES > tensors.num_bytes:
        problems.append(
            f"{num_values:,} values in {tensors.num_bytes:,} bytes: "
            "tensors overlap in the file"
        )
    else:
        for entry in matching:
            problems += _problems_of_values(entry, tensors)
    if problems:
        lines = "\n".join(
            f"- {line[:300]}" for line in problems[:_MAX_PROBLEMS]
        )
        if len(problems) > _MAX_PROBLEMS:
            lines += f"\n- and {len(problems) - _MAX_PROBLEMS} more"
        raise ValueError(
            f"{source} does not fit its configuration. Nothing was loaded: "
            f"{len(problems)} problem(s).\n{lines}"
        )
    # Not earlier, since an untrusted configuration may ask for any size.
    model = build()
    weights = _covered_weights(model, layout)
    for entry in layout:
        name = _matching_names(entry, tensors)[0]
        targets = [weights[path] for path in entry.weights]
        shapes = [tuple(weight.shape) for weight in targets]
        parts = entry.split(tensors[name], shapes)
        for weight, part in zip(targets, parts, strict=True):
            weight.assign(tf.cast(to_tensor(part), weight.dtype))
        del parts, part  # one tensor is in memory at a time
    return model


def write(model, layout):
    """Returns a model's foreign tensors, float32 arrays by their first name."""
    weights = _covered_weights(model, layout)
    tensors = {}
    for entry in layout:
        arrays = [
            np.asarray(weights[path], np.float32) for path in entry.weights
        ]
        tensors[entry.names[0]] = entry.join(arrays)
    return tensors


def _covered_weights(model, layout):
    weights = weights_by_name(model)
    covered = [path for entry in layout for path in entry.weights]
    if sorted(covered) != sorted(weights):
        # A missing weight would silently keep its initial value.
        raise ValueError(
            "The layout must name every weight of the model once. Received: "
            f"layout={sorted(covered)}, weights={sorted(weights)}"
        )
    return weights


def _matching_names(entry, tensors):
    """Returns those names of an entry whose tensors have its shape."""
    return [n for n in entry.names if tensors.shapes.get(n) == entry.shape]


def _problems_of_shapes(layout, tensors):
    """Yields the tensors that are missing, of another shape or unexpected."""
    shapes = {name: shown(shape) for name, shape in tensors.shapes.items()}
    for entry in layout:
        found = [name for name in entry.names if name in tensors]
        if not found:
            yield f"missing: {' or '.join(entry.names)} of shape {entry.shape}"
        for name in found:
            if tensors.shapes[name] != entry.shape:
                expected = f"expected {entry.shape}"
                yield f"wrong shape: {name} is {shapes[name]}, {expected}"
    known = {name for entry in layout for name in entry.names}
    for name in sorted(set(tensors) - known):
        yield f"unexpected: {shown(name)} of shape {shapes[name]}"


def _problems_of_values(entry, tensors):
    """Yields the problems in the values of one foreign tensor."""
    first, *others = _matching_names(entry, tensors)
    try:
        array = tensors[first]
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(array.astype(np.float32, copy=False))
        if not is_finite.all():
            yield (
                f"not finite: {first} holds NaN, infinity, or numbers that "
                "float32 cannot hold"
            )
        for name in others:
            if not np.array_equal(array, tensors[name]):
                yield (
                    "tied in the configuration, but different in the file: "
                    f"{first} and {name}"
                )
    except ValueError as error:
        yield f"cannot be read: {error}"
