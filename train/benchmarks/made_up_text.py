"""Text that nobody wrote, in the frequencies of one that somebody did."""

import numpy as np
import tensorflow as tf


def made_up_ids(vocabulary_size, *shape):
    """Ids as frequent as words are: word r of V with a share of 1 / r.

    Args:
        vocabulary_size: Integer `V`.
        *shape: Integers.

    Returns:
        int32 array, the same at every call.

    Example:

    >>> ids = made_up_ids(1000, 2, 50)
    >>> ids.shape, bool((ids < 10).mean() > 0.2)
    ((2, 50), True)
    """
    uniform = np.random.default_rng(0).uniform(size=shape)
    return (vocabulary_size**uniform - 1).astype(np.int32)


def made_up_text(model, batch_size, num_tokens):
    """`made_up_ids` of a model's vocabulary: a tensor `(B, num_tokens)`."""
    vocabulary_size = model.backbone.vocabulary_size
    return tf.constant(made_up_ids(vocabulary_size, batch_size, num_tokens))


def made_up_segment(model, batch_size, segment_length):
    """Inputs and targets, int32 tensors `(B, T)`."""
    text = made_up_text(model, batch_size, segment_length + 1)
    return text[:, :-1], text[:, 1:]
