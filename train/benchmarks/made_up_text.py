"""Synthetic token ids with Zipf frequencies."""

import numpy as np
import tensorflow as tf


def made_up_ids(vocabulary_size, *shape):
    """Draws int32 ids; id r has a frequency of about 1 / r. Same each call."""
    uniform = np.random.default_rng(0).uniform(size=shape)
    return (vocabulary_size**uniform - 1).astype(np.int32)


def made_up_text(model, batch_size, num_tokens):
    """Draws ids of a model's vocabulary as a tensor `(B, num_tokens)`."""
    vocabulary_size = model.backbone.vocabulary_size
    return tf.constant(made_up_ids(vocabulary_size, batch_size, num_tokens))


def made_up_segment(model, batch_size, segment_length):
    """Returns inputs and targets, int32 tensors `(B, T)`."""
    text = made_up_text(model, batch_size, segment_length + 1)
    return text[:, :-1], text[:, 1:]
