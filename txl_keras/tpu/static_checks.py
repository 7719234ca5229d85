"""What a step must not have, to be compiled for a TPU.

XLA for the CPU accepts some of it: that a step runs there proves little.
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
        "draws from a state that no checkpoint holds",
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
    """Sees that a traced function can be compiled for a TPU.

    Looks at all operations, also those of the functions that it calls, of
    branches and of loops: every shape must be known, nothing may be a string
    or of 64-bit floating point, call back to the host, draw random numbers
    from a state, or have an output whose shape depends on values.

    Args:
        function: `tf.types.experimental.ConcreteFunction`.

    Raises:
        ValueError: If something is not so; with the operation and the reason.

    Example:

    ```python
    import tensorflow as tf

    from txl_keras.tpu.static_checks import check_static

    found = tf.function(tf.where).get_concrete_function(tf.constant([True]))
    try:
        check_static(found)
    except ValueError as error:
        print(error)
    ```
    """
    for graph in _graphs(function.graph, set()):
        known = _known_to_xla(graph)
        for operation in graph.get_operations():
            _check_operation(operation, graph, known)


def _known_to_xla(graph):
    """Ids of tensors whose shapes only seem to be unknown.

    Axes to sum a gradient over follow from shapes, which XLA knows when it
    compiles; and a condition of a loop need not look at all of its arguments.
    """
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
                # No public way leads from a name to the traced function.
                yield from _graphs(graph._get_function(name).graph, seen)


def _called(operation):
    for attribute in operation.node_def.attr.values():
        if attribute.HasField("func"):
            yield attribute.func.name
        yield from (function.name for function in attribute.list.func)


def _check_operation(operation, graph, known):
    for reason, pattern in _FORBIDDEN:
        if re.fullmatch(pattern, operation.type):
            _refuse(operation, graph, reason)
    for tensor in operation.outputs:
        if tensor.dtype in _DTYPES:
            _refuse(operation, graph, f"gives {_DTYPES[tensor.dtype]}")
        if id(tensor) in known:
            continue
        if not _is_known(tensor.shape):
            shape = f"gives a tensor of the shape {tensor.shape}"
            _refuse(operation, graph, shape)


def _is_known(shape):
    # Of what has no elements TensorFlow may not know the other axes, for a
    # reshape does not tell them; XLA, which has all sizes, does.
    is_empty = shape.rank is not None and 0 in shape.as_list()
    return is_empty or shape.is_fully_defined()


def _refuse(operation, graph, reason):
    raise ValueError(
        "A step for a TPU must have static shapes, no strings, no 64-bit "
        "floating point, no calls of the host and no state of random numbers. "
        f"Received: {operation.name} ({operation.type}, in {graph.name}), "
        f"which {reason}"
    )
