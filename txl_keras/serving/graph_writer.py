"""Text generation as a loop in a graph.

More letters: `P` prompt, `W` tokens to generate.
"""

import tensorflow as tf

from txl_keras.checks import check_token_ids
from txl_keras.checks import checked
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.models.generation.generator import only
from txl_keras.models.generation.generator import row_seeds
from txl_keras.models.generation.token_reader import PROMPT_SEGMENT
from txl_keras.samplers.sampler import Sampler


def write_tokens(
    served,
    prompt_ids,
    prompt_length,
    memory,
    length,
    seed,
    *sampling,
    allowed=None,
):
    """Generates the tokens that `Generator` would, with the same seed."""
    # Returns ids, int32 `(B, W)`, and the memory after all of them except the
    # last, which was not read. The first tokens are among those `allowed`.
    memory, sampler = served.from_tensors(memory), Sampler(*sampling)
    length = check_token_ids("length", length, served.max_generate_length + 1)
    size = min(PROMPT_SEGMENT, served.max_segment_length)
    memory, _ = read_segments(served, prompt_ids, prompt_length, memory, size)
    batch_size, size = tf.unstack(tf.shape(prompt_ids))
    seeds = row_seeds(seed, batch_size)
    positions = served.positions(1)
    # Which tokens occur in the prompts, boolean `(B, V)`.
    seen = _mark(
        tf.zeros((batch_size, served.backbone.vocabulary_size), "bool"),
        tf.repeat(tf.range(batch_size), prompt_length),
        tf.boolean_mask(prompt_ids, tf.sequence_mask(prompt_length, size)),
    )

    def write(state, ring, new):
        return write_in_place(state, ring.flat_indices, new)

    def step(position, token, ids, seen, memory):
        hidden, *entries = served.read(token[:, None], memory, positions)
        # Nothing may read the old entries after they are overwritten.
        with tf.control_dependencies([hidden]):
            memory = served.backbone.append(memory, entries, write=write)
        draw = sampler, fold_in(seeds, position), seen
        if allowed is None:
            token = served.model.softmax.sample(hidden[:, 0], *draw)
        else:
            log_probs = served.model.softmax.log_probs(hidden[:, 0])
            may_be = allowed | (position > 0)
            token = draw[0](only(may_be, log_probs), *draw[1:])
        ids = tf.tensor_scatter_nd_update(ids, [[position]], token[None])
        token = tf.maximum(token, 0)  # NaN gives -1; checked at the end
        seen = _mark(seen, tf.range(batch_size), token)
        return position + 1, token, ids, seen, memory

    _, _, ids, _, memory = tf.while_loop(
        lambda position, *_: position < length,
        step,
        (
            tf.constant(0),
            tf.gather(prompt_ids, prompt_length - 1, batch_dims=1),
            tf.zeros((length, batch_size), tf.int32),
            seen,
            # A copy, which `write_in_place` may overwrite.
            tf.nest.map_structure(lambda x: tf.raw_ops.DeepCopy(x=x), memory),
        ),
    )
    ids = checked(
        ids,
        tf.reduce_all(ids >= 0),
        "A token cannot be drawn, because the model returned NaN.",
    )
    return tf.transpose(ids), memory


def read_segments(served, ids, lengths, memory, size, scores=False):
    """Reads each row's first `lengths` tokens but the last, by segments."""
    # Returns the memory after them, and with `scores` losses `(B, P)`. The
    # first token has no context and no loss; losses of padding are arbitrary.
    lengths -= 1
    end = tf.reduce_max(tf.concat([lengths, [0]], axis=0))
    positions = served.positions(size)

    def read(start, memory, nll):
        stop = tf.minimum(start + size, end)
        hidden, *entries = served.read(ids[:, start:stop], memory, positions)
        if scores:
            new = served.model.softmax(hidden, ids[:, start + 1 : stop + 1])
            nll = tf.concat([nll, new], axis=1)
        num_real = tf.clip_by_value(lengths - start, 0, stop - start)
        return stop, served.backbone.append(memory, entries, num_real), nll

    _, memory, nll = tf.while_loop(
        lambda start, *_: start < end,
        read,
        (tf.constant(0), memory, tf.zeros_like(ids[:, :1], tf.float32)),
    )
    return memory, nll


def _mark(seen, rows, ids):
    """Sets `seen` at the given rows and ids."""
    indices = tf.stack([rows, ids], axis=1)
    return tf.tensor_scatter_nd_update(seen, indices, tf.ones_like(ids, "bool"))


def write_in_place(state, flat_indices, entries):
    """Overwrites entries of a tensor in place, after all reads of old ones."""
    # Without XLA, `tf.tensor_scatter_nd_update` would copy the whole tensor on
    # a CPU.
    size = state.shape[-1]
    updated = tf.raw_ops.InplaceUpdate(
        x=tf.reshape(state, (-1, size)),
        i=flat_indices,
        v=tf.reshape(entries, (-1, size)),
    )
    return tf.reshape(updated, (-1, *state.shape[1:]))
