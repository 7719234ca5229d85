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


@dataclasses.dataclass(frozen=True)
class Entry:
    """Maps one foreign tensor to the weights of ours that it holds.

    To load, the tensor is transposed, flipped and split along `axis` into one
    part per weight, and each part is reshaped to its weight.
    """

    # One name or a list of names in the file. A shared tensor may have one of
    # them or several.
    names: tuple
    # One path or a list of the paths of our weights, in order.
    weights: tuple
    # Shape of the foreign tensor.
    shape: tuple
    # True for PyTorch's linear layers, which are `(out, in)`.
    transposed: bool = False
    # Axis whose order is the reverse of ours.
    flipped: int | None = None
    # Axis of the split, after transposing.
    axis: int = 0

    def __post_init__(self):
        for name in ("names", "weights"):
            value = getattr(self, name)
            value = (value,) if isinstance(value, str) else tuple(value)
            object.__setattr__(self, name, value)

    def split(self, array, shapes):
        """Returns our weights, of the given shapes, from the foreign tensor."""
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
        """Returns the foreign tensor from our weights."""
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
        """Returns the start of every part but the first along `axis`."""
        slice_size = math.prod(_with_size(self._oriented_shape(), self.axis, 1))
        sizes = [math.prod(shape) // slice_size for shape in shapes[:-1]]
        return np.cumsum(sizes, dtype=int)


def _with_size(shape, axis, size):
    return (*shape[:axis], int(size), *shape[axis + 1 :])


def feed_forward_and_norms(names, i, backbone, is_torch=True):
    """Yields the entries of block `i` that all implementations have."""
    # `names` are those of two layer norms and of the two linear layers.
    size, inner = backbone.hidden_dim, backbone.intermediate_dim
    for name, part, shape in zip(
        names,
        ("attention_norm", "feed_forward_norm", "feed_forward_intermediate",
         "feed_forward_output"),
        ((size,), (size,), (size, inner), (inner, size)),
        strict=True,
    ):  # fmt: skip
        is_linear = len(shape) == 2
        ours = ("kernel", "bias") if is_linear else ("gamma", "beta")
        theirs = [f"/{x}" for x in ours]
        transposed = is_torch and is_linear
        if is_torch:
            theirs = (".weight", ".bias")
        weights = [f"block_{i}/{part}/{x}" for x in ours]
        foreign_shape = shape[::-1] if transposed else shape
        yield Entry(name + theirs[0], weights[0], foreign_shape, transposed)
        yield Entry(name + theirs[1], weights[1], shape[-1:])


def read(build, layout, tensors, source):
    """Builds a model and loads its weights, if the file fits the layout."""
    problems = [*_problems_of_names(layout, tensors)]
    for entry in layout:
        problems += _problems_of_shapes(entry, tensors)
    matching = [entry for entry in layout if _matching_names(entry, tensors)]
    # Overlapping tensors in a small file could ask for any amount of memory.
    if _num_values(matching) * _MIN_ITEM_BYTES > tensors.num_bytes:
        problems.append(
            f"{_num_values(matching):,} values in {tensors.num_bytes:,} bytes: "
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


def _num_values(entries):
    return sum(math.prod(entry.shape) for entry in entries)


def _matching_names(entry, tensors):
    """Returns those names of an entry whose tensors have its shape."""
    return [n for n in entry.names if tensors.shapes.get(n) == entry.shape]


def _printable(name):
    """Returns a name for a message, shortened and escaped if necessary."""
    return name if len(name) < 200 and name.isprintable() else shown(name)


def _problems_of_names(layout, tensors):
    for entry in layout:
        if not any(name in tensors for name in entry.names):
            yield f"missing: {' or '.join(entry.names)} of shape {entry.shape}"
    known = {name for entry in layout for name in entry.names}
    for name in sorted(set(tensors) - known):
        shape = shown(tensors.shapes[name])
        yield f"unexpected: {_printable(name)} of shape {shape}"


def _problems_of_shapes(entry, tensors):
    for name in entry.names:
        if tensors.shapes.get(name, entry.shape) != entry.shape:
            yield (
                f"wrong shape: {name} is {shown(tensors.shapes[name])}, "
                f"expected {entry.shape}"
            )


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
