"""Layouts: lists of `Entry`, one per tensor of a foreign checkpoint."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from keras import ops

from txl_keras.checkpoints.configuration import raise_found
from txl_keras.checks import shown
from txl_keras.tensor_files import MIN_ITEM_BYTES
from txl_keras.tensor_files import shapes_of
from txl_keras.weights import build_in_graph
from txl_keras.weights import build_undrawn
from txl_keras.weights import of_all_layers
from txl_keras.weights import to_tensor
from txl_keras.weights import weights_by_name


@dataclasses.dataclass
class Entry:
    """Maps a foreign tensor to the weights of ours that it holds.

    To write it, weights are reshaped, joined, flipped and transposed. To load
    it, these steps are reversed.
    """

    # Names in the file; a shared tensor may have one or several of them.
    names: list
    weights: list  # paths of our weights, in order
    reshape: Callable = tuple  # maps our shape to the shape in the tensor
    axis: int = 0  # along which weights are joined
    # Axis whose order is the reverse of ours.
    flipped: int | None = None
    # True for PyTorch's linear layers, which are `(out, in)`.
    transposed: bool = False
    shape: tuple = ()  # of the foreign tensor, see `fit`

    def fit(self, shapes):
        """Sets the shape of the foreign tensor, given our weights' shapes."""
        parts = [[*self.reshape(shapes[path])] for path in self.weights]
        shape = parts[0]
        shape[self.axis] = sum(part[self.axis] for part in parts)
        self.shape = tuple(shape[::-1] if self.transposed else shape)

    def split(self, array, shapes):
        """Returns our weights, of the given shapes, from the foreign tensor."""
        if self.transposed:
            array = array.T
        if self.flipped is not None:
            array = np.flip(array, self.flipped)
        lengths = [self.reshape(shape)[self.axis] for shape in shapes]
        parts = np.split(array, np.cumsum(lengths)[:-1], self.axis)
        return [x.reshape(s) for x, s in zip(parts, shapes, strict=True)]

    def join(self, weights):
        """Returns the foreign tensor from our weights."""
        parts = [x.reshape(self.reshape(x.shape)) for x in weights]
        array = np.concatenate(parts, self.axis)
        if self.flipped is not None:
            array = np.flip(array, self.flipped)
        return np.ascontiguousarray(array.T if self.transposed else array)


def feed_forward_and_norms(names, i):
    """Yields the entries of block `i` that all implementations have."""
    # `names` are PyTorch's names of two layer norms and of two linear layers.
    for name, part, *weights in (
        (names[0], "attention_norm", "gamma", "beta"),
        (names[1], "feed_forward_norm", "gamma", "beta"),
        (names[2], "feed_forward_intermediate", "kernel", "bias"),
        (names[3], "feed_forward_output", "kernel", "bias"),
    ):
        weights = [[f"block_{i}/{part}/{weight}"] for weight in weights]
        is_linear = part[-4:] != "norm"
        yield Entry([f"{name}.weight"], weights[0], transposed=is_linear)
        yield Entry([f"{name}.bias"], weights[1])


def read(build, arguments, make_layout, tensors, source):
    """Builds a model and loads its weights, if the file fits the layout."""
    # `build` makes a model from the `arguments` of its backbone, `make_layout`
    # the entries of a model. An untrusted configuration may ask for any size.
    # So before memory is allocated, a graph with one block is compared with the
    # file; all blocks have the same sizes.
    small = build_in_graph(lambda: build({**arguments, "num_layers": 1}))
    num_layers = arguments["num_layers"]
    layout = make_layout(small, num_layers)
    shapes = of_all_layers(shapes_of(weights_by_name(small)), num_layers)
    for entry in layout:
        entry.fit(shapes)
    _refuse(source, _problems_of_shapes(layout, tensors))
    model = build_undrawn(lambda: build(arguments), arguments)
    weights = weights_by_name(model)
    problems = []
    for entry in layout:
        first, *others = [name for name in entry.names if name in tensors]
        array = tensors[first]
        problems += _problems_of_values(first, array, others, tensors)
        if problems:
            continue
        targets = [weights.pop(path) for path in entry.weights]
        shapes = [tuple(weight.shape) for weight in targets]
        parts = entry.split(array, shapes)
        for weight, part in zip(targets, parts, strict=True):
            weight.assign(ops.cast(to_tensor(part), weight.dtype))
        del array, parts, part  # one tensor is in memory at a time
    _refuse(source, problems)
    _check_all_used(weights)
    return model


def _refuse(source, problems):
    problems = dict.fromkeys(problems, True)
    raise_found(
        f"{source} does not fit its configuration. Nothing was loaded: "
        f"{len(problems)} problem(s).",
        problems,
    )


def write(model, layout):
    """Returns a model's foreign tensors, float32 arrays by their first name."""
    weights = weights_by_name(model)
    tensors = {}
    for entry in layout:
        arrays = [
            np.asarray(weights.pop(path), np.float32) for path in entry.weights
        ]
        tensors[entry.names[0]] = entry.join(arrays)
    _check_all_used(weights)
    return tensors


def _check_all_used(rest):
    if rest:
        raise ValueError(
            "`model` must have only weights of the format. Received others: "
            f"{shown([*rest])}"
        )


def _problems_of_shapes(layout, tensors):
    """Yields the tensors that are missing, of another shape or unexpected."""
    shapes = {name: shown(shape) for name, shape in tensors.shapes.items()}
    num_values = 0
    for entry in layout:
        found = [name for name in entry.names if name in tensors]
        if not found:
            yield f"missing: {' or '.join(entry.names)} of shape {entry.shape}"
        for name in found:
            if tensors.shapes[name] != entry.shape:
                expected = f"expected {entry.shape}"
                yield f"wrong shape: {name} is {shapes[name]}, {expected}"
        num_values += math.prod(entry.shape)
    known = {name for entry in layout for name in entry.names}
    for name in sorted(set(tensors) - known):
        yield f"unexpected: {shown(name)} of shape {shapes[name]}"
    # Overlapping tensors in a small file could ask for any amount of memory.
    if num_values * MIN_ITEM_BYTES > tensors.num_bytes:
        yield (
            f"{num_values:,} values in {tensors.num_bytes:,} bytes: tensors "
            "overlap in the file, or are missing"
        )


def _problems_of_values(name, array, others, tensors):
    """Yields the problems in the values of a foreign tensor."""
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(array.astype(np.float32, copy=False)).all()
    if not is_finite:
        yield (
            f"not finite: {name} holds NaN, infinity, or numbers that float32 "
            "cannot hold"
        )
    for other in others:
        if not np.array_equal(array, tensors[other]):
            yield (
                "tied in the configuration, but different in the file: "
                f"{name} and {other}"
            )
