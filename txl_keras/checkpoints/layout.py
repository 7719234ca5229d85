"""How the tensors of a foreign checkpoint and our weights correspond.

A layout is a list of `Entry`, one for every foreign tensor. It is data, read
in both directions: loading, checking and writing share it.
"""

import collections.abc
import dataclasses
import math

import numpy as np
import tensorflow as tf

from txl_keras.checks import shown
from txl_keras.models.weights import to_tensor
from txl_keras.models.weights import weights_by_name

_SMALLEST = 2  # bytes per number
# As many as are listed of what does not fit.
_MAX_PROBLEMS = 50


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


def projection_shapes(softmax):
    """Returns the shapes of an embedding's and its softmax's projections.

    Args:
        softmax: `AdaptiveSoftmax`, built or not.

    Returns:
        Pair of lists of shapes per cluster, `None` where there is none. An
        embedding whose clusters share one has a list of one.
    """
    embedding = softmax.embedding
    shapes = [
        (size, embedding.output_dim) if embedding.needs_projection(i) else None
        for i, size in enumerate(embedding.dims)
    ]
    pairs = zip(shapes, softmax.tie_projections, strict=True)
    return (
        shapes[:1] if embedding.div_val == 1 else shapes,
        [None if is_tied else shape for shape, is_tied in pairs],
    )


class Tensors(collections.abc.Mapping):
    """The tensors of a file: shapes at once, values when they are asked for.

    Args:
        shapes: Dictionary from name to shape.
        load: Function of a name that returns an array.
        num_bytes: Number, how many bytes of the file are numbers.
    """

    def __init__(self, shapes, load, num_bytes):
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.num_bytes = num_bytes
        self._load = load

    def __getitem__(self, name):
        array = self._load(name)
        dtype = tf.as_dtype(array.dtype)
        if not dtype.is_floating or dtype.size < _SMALLEST:
            raise ValueError(
                f"{shown(name)} must be of floats of 16 to 64 bits. "
                f"Received: {dtype.name}"
            )
        return array

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
            self.num_bytes,
        )


def read(build, layout, tensors, source):
    """Builds a model of a file, if all of its weights are in the file.

    Args:
        build: Function without arguments that returns a Keras model, such as
            `TransformerXLCausalLM`. Its sizes may be those that a stranger
            asks for, so it is called once the file was found to have them.
        layout: List of `Entry` that covers its weights.
        tensors: `Tensors` of the file; one is in memory at a time.
        source: What to call the file in an error.

    Returns:
        The model.

    Raises:
        ValueError: If the file does not fit the layout. The message lists what
            is missing, unexpected, of a wrong shape, not finite, or different
            where it should be tied.
    """
    problems = [*_problems_of_names(layout, tensors)]
    for entry in layout:
        problems += _problems_of_shapes(entry, tensors)
    fitting = [entry for entry in layout if _fitting(entry, tensors)]
    # Tensors may lie on top of each other in the file.
    if _size(fitting) * _SMALLEST > tensors.num_bytes:
        problems.append(
            f"{_size(fitting):,} numbers from {tensors.num_bytes:,} bytes: the "
            "same numbers for several tensors"
        )
    else:
        for entry in fitting:
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
    model = build()
    weights = _covered_weights(model, layout)
    for entry in layout:
        name = _fitting(entry, tensors)[0]
        targets = [weights[ours] for ours in entry.ours]
        shapes = [tuple(weight.shape) for weight in targets]
        parts = entry.split(tensors[name], shapes)
        for weight, part in zip(targets, parts, strict=True):
            weight.assign(tf.cast(to_tensor(part), weight.dtype))
        del parts, part
    return model


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


def _size(entries):
    return sum(math.prod(entry.shape) for entry in entries)


def _fitting(entry, tensors):
    """Returns the names under which the file has an entry, in its shape."""
    return [n for n in entry.names if tensors.shapes.get(n) == entry.shape]


def _plain(name):
    """Returns a name for a message: short, of printable characters."""
    return name if len(name) < 200 and name.isprintable() else shown(name)


def _problems_of_names(layout, tensors):
    for entry in layout:
        if not any(name in tensors for name in entry.names):
            yield f"missing: {' or '.join(entry.names)} of shape {entry.shape}"
    known = {name for entry in layout for name in entry.names}
    for name in sorted(set(tensors) - known):
        shape = shown(tensors.shapes[name])
        yield f"unexpected: {_plain(name)} of shape {shape}"


def _problems_of_shapes(entry, tensors):
    for name in entry.names:
        if tensors.shapes.get(name, entry.shape) != entry.shape:
            yield (
                f"wrong shape: {name} is {shown(tensors.shapes[name])}, "
                f"expected {entry.shape}"
            )


def _problems_of_values(entry, tensors):
    """Problems of one foreign tensor; reads it, so that they show early."""
    first, *others = _fitting(entry, tensors)
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
