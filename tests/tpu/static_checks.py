"""Checks that a traced step can be compiled for a TPU.

XLA for the CPU accepts some of what is rejected here, so a step that runs on a
CPU may still fail on a TPU.
"""

import re

import tensorflow as tf

_FORBIDDEN = (
    (
        "calls back to the host",
        r"(Eager)?PyFunc(Stateless)?|Print(V2)?|Assert|.*Summary(V2)?|"
        r"Xla(Send|Recv|Host).*|Outfeed.*|Infeed.*",
    ),
    (
        "draws random numbers from a state that no checkpoint holds",
        r"Random.*|Multinomial|TruncatedNormal|"
        r"ParameterizedTruncatedNormal|Stateful.*(Uniform|Normal|Binomial).*|"
        r"Rng.*|NonDeterministicInts",
    ),
    (
        "has an output whose shape depends on values",
        r"Where|Unique.*|NonMaxSuppression.*|DynamicPartition|ListDiff|"
        r"SetDiff1D|EmptyTensorList|TensorListPushBack|.*Ragged.*",
    ),
)  # fmt: skip
_DTYPES = {
    tf.string: "a string",
    tf.float64: "float64",
    tf.complex128: "complex128",
}


def check_static(function):
    """Checks that a traced function, with all it calls, compiles for a TPU."""
    # Every shape must be known. Operations must not use strings or 64-bit
    # floats, call back to the host, draw random numbers from a state, or have
    # an output shape that depends on values.
    for graph in _graphs(function.graph, set()):
        known = _static_for_xla(graph)
        for operation in graph.get_operations():
            _check_operation(operation, graph, known)


def _static_for_xla(graph):
    """Returns ids of tensors whose unknown shapes are no problem for XLA."""
    # The axes to reduce a gradient over follow from shapes, which XLA knows
    # when it compiles. Unused arguments, such as those of a loop's condition,
    # do not matter.
    known = set()
    outputs = {id(tensor) for tensor in graph.outputs}
    for operation in graph.get_operations():
        from_axes = any(id(tensor) in known for tensor in operation.inputs)
        is_axes = operation.type == "BroadcastGradientArgs" or from_axes
        for tensor in operation.outputs:
            is_unused = (
                operation.type == "Placeholder"
                and not tensor.consumers()
                and id(tensor) not in outputs
            )
            if is_unused or (is_axes and tensor.dtype == tf.int32):
                known.add(id(tensor))
    return known


def _graphs(graph, seen):
    """Yields a graph and those of all functions that it calls."""
    yield graph
    for operation in graph.get_operations():
        for name in _called(operation):
            if name not in seen:
                seen.add(name)
                # No public function finds a traced function by its name.
                yield from _graphs(graph._get_function(name).graph, seen)


def _called(operation):
    for attribute in operation.node_def.attr.values():
        if attribute.HasField("func"):
            yield attribute.func.name
        yield from (function.name for function in attribute.list.func)


def _check_operation(operation, graph, known):
    where = f"{operation.name} ({operation.type}, in {graph.name})"
    for reason, pattern in _FORBIDDEN:
        assert not re.fullmatch(pattern, operation.type), f"{where} {reason}"
    for tensor in operation.outputs:
        kind = _DTYPES.get(tensor.dtype)
        assert kind is None, f"{where} returns {kind}"
        assert id(tensor) in known or _is_known(tensor.shape), (
            f"{where} returns a tensor of the shape {tensor.shape}"
        )


def _is_known(shape):
    # TensorFlow may not infer the other axes of an empty tensor after a
    # reshape. XLA knows all sizes.
    is_empty = shape.rank is not None and 0 in shape.as_list()
    return is_empty or shape.is_fully_defined()
