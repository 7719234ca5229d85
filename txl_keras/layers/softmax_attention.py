"""Softmax over keys that lie in several tensors, and its gradient.

Letters: `B` batch, `T` segment, `S` keys, `N` heads, `H` head size.
"""

import functools

import tensorflow as tf

# The score of a key that may not be seen. Finite, so that a row that may see
# none stays a number.
CLOSED = -1e30


def masked_softmax(scores, masks):
    """Softmax over the keys of all parts together, in float32.

    Args:
        scores, masks: See `attend`.

    Returns:
        Float32 tensor `(N, B, T, S)`; a query that may see no key sees all
        alike, and is never NaN.
    """
    scores = [_closed(*part) for part in zip(scores, masks, strict=True)]
    return tf.nn.softmax(tf.concat(scores, axis=-1))


def exponentials_of_parts(scores):
    """What a softmax over all parts together is made of.

    Args:
        scores: List of float32 tensors `(..., S_i)`.

    Returns:
        Triple of a list of exponentials of what the scores are above the
        highest, and the highest and the sums of exponentials, `(..., 1)`.
    """
    highest = functools.reduce(
        tf.maximum,
        [tf.reduce_max(part, axis=-1, keepdims=True) for part in scores],
    )
    exponentials = [tf.exp(part - highest) for part in scores]
    total = tf.add_n(
        [tf.reduce_sum(part, axis=-1, keepdims=True) for part in exponentials]
    )
    return exponentials, highest, total


def attend(scores, masks, values, keep=None, rate=0.0):
    """`dropout(softmax(scores)) values`, over keys in several parts.

    Backward is written out, for the bytes that it moves: of all tensors as
    large as the scores only these, in their own dtype, are kept for it.
    Probabilities come back from them and from two numbers a query, its highest
    score and its sum of exponentials; what dropout kept is computed again
    from its seeds; and the sum over keys in the gradient of a softmax is, for
    a query, the product of its output and the gradient of that (Dao et al.,
    2022, appendix B.2).

    Args:
        scores: List of tensors `(N, B, T, S_i)` of one float dtype.
        masks: List of booleans that broadcast to these, false where a key may
            not be seen.
        values: List of tensors `(B, S_i, N, H)` of the same dtype.
        keep: Optional function without arguments. Returns a list of booleans
            like `scores`, the same at every call: the probabilities that
            dropout keeps.
        rate: Float in `[0, 1)`, the fraction that it does not.

    Returns:
        Tensor `(N, B, T, H)` of the dtype of the values. A query that may see
        no key gets the mean of all.

    Example:

    >>> scores = [tf.zeros((2, 3, 4, 5)), tf.zeros((2, 3, 4, 1))]
    >>> values = [tf.zeros((3, 5, 2, 7)), tf.ones((3, 1, 2, 7))]
    >>> attended = attend(scores, [True, True], values)
    >>> tuple(attended.shape), float(attended[0, 0, 0, 0])
    ((2, 3, 4, 7), 0.1666666716337204)
    """
    num_parts = len(scores)

    @tf.custom_gradient
    def attended(*tensors):
        output, *norms = _forward(*_halves(tensors), masks, keep, rate)

        def gradient(output_gradient):
            return _backward(
                *_halves(tensors),
                masks,
                keep,
                rate,
                output,
                *norms,
                output_gradient,
            )

        return output, gradient

    def _halves(tensors):
        return tensors[:num_parts], tensors[num_parts:]

    return attended(*scores, *values)


def _forward(scores, values, masks, keep, rate):
    """The output, the highest scores and sums of exponentials, `(N, B, T, 1)`.

    As one number, the logarithm of the sum, these two would lose it where a
    query may see no key.
    """
    scores = [_closed(*part) for part in zip(scores, masks, strict=True)]
    exponentials, highest, total = exponentials_of_parts(scores)
    # Divided at the end: N B T H numbers rather than N B T S.
    attended = tf.add_n(
        [
            _product("nbts,bsnh->nbth", tf.cast(weights, part.dtype), part)
            for weights, part in zip(
                _kept(exponentials, keep), values, strict=True
            )
        ]
    )
    output = tf.cast(attended / (total * (1 - rate)), values[0].dtype)
    return output, highest, total


def _backward(
    scores, values, masks, keep, rate, output, highest, total, output_gradient
):
    """Gradients of the scores, then of the values."""
    dtype = output.dtype
    shift = mean_weight_gradient(output, output_gradient)  # [N, B, T, 1]
    scale = 1 / (1 - rate)
    # What follows cannot be computed before the gradient is there, or XLA would
    # make the probabilities of the backward pass beside those of the forward
    # pass, and keep them.
    after = zero_after(shift)
    # Divided inside of the exponential: as `exp(x) / total` XLA would find the
    # exponentials of the forward pass, and keep those.
    log_total = tf.math.log(total) + after
    probabilities = [
        tf.exp(_closed(*part) - highest - log_total)
        for part in zip(scores, masks, strict=True)
    ]
    weights = [part * scale for part in _kept(probabilities, keep)]
    value_gradients = [
        tf.einsum("nbts,nbth->bsnh", tf.cast(part, dtype), output_gradient)
        for part in weights
    ]
    weight_gradients = [
        _product("nbth,bsnh->nbts", output_gradient, part) for part in values
    ]
    score_gradients = [
        # A query that may see no key has probabilities of those it may not.
        tf.where(mask, part * (gradient * scale - shift), 0)
        for part, gradient, mask in zip(
            probabilities,
            _kept(weight_gradients, keep),
            masks,
            strict=True,
        )
    ]
    return *(tf.cast(part, dtype) for part in score_gradients), *value_gradients


def mean_weight_gradient(output, output_gradient):
    """The gradient of the weights of a query, weighted by them and summed.

    Args:
        output, output_gradient: Tensors `(..., T, H)`.

    Returns:
        Float32 tensor `(..., T, 1)`.
    """
    product = tf.cast(output_gradient, tf.float32) * tf.cast(output, tf.float32)
    return tf.reduce_sum(product, axis=-1, keepdims=True)


def zero_after(x):
    """0, but only once `x` is there, and a compiler does not know it.

    XLA heeds no control dependencies; what adds this does wait.

    Args:
        x: Float32 tensor.

    Returns:
        Float32 tensor of its shape; NaN where `x` is.
    """
    return tf.where(tf.math.is_nan(x), x, 0.0)


def _closed(scores, mask):
    return tf.where(mask, tf.cast(scores, tf.float32), CLOSED)


def _kept(parts, keep):
    if keep is None:
        return parts
    return [
        tf.where(kept, part, 0)
        for part, kept in zip(parts, keep(), strict=True)
    ]


def _product(equation, left, right):
    return tf.cast(tf.einsum(equation, left, right), tf.float32)
