"""Multi-head attention over memory and segment that sees no positions.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`H` head size, `D` hidden size.
"""

import dataclasses
import functools
import itertools

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_dropout
from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_shape
from txl_keras.layers.block_attention import attend_in_blocks
from txl_keras.layers.block_attention import attend_to_parts
from txl_keras.layers.block_attention import split_queries
from txl_keras.layers.fusing import is_for_cpu
from txl_keras.layers.relative_shift import part_lengths
from txl_keras.layers.relative_shift import scores_both_ways
from txl_keras.layers.relative_shift import scores_by_key
from txl_keras.layers.relative_shift import shift_nearest
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.row_dropout import is_kept
from txl_keras.layers.softmax_attention import CLOSED
from txl_keras.layers.softmax_attention import attend
from txl_keras.layers.softmax_attention import exponentials_of_parts
from txl_keras.layers.softmax_attention import masked_softmax
from txl_keras.layers.sublayers import heads_dense
from txl_keras.layers.tpu_attention import KernelShape
from txl_keras.layers.tpu_attention import attend_in_kernel
from txl_keras.layers.tpu_attention import is_for_kernel
from txl_keras.layers.tpu_attention import with_row_major_gradient

SAME_LENGTHS = (False, True, "pytorch")


@keras.saving.register_keras_serializable(package="txl_keras")
class CausalMultiHeadAttention(keras.layers.Layer):
    """Causal attention of a segment over its memory and itself.

    Scaled dot products of queries and keys, `softmax(Q K / sqrt(H)) V W_o`,
    no more: positions are what comes with the inputs (Vaswani et al., Al-Rfou
    et al.) or what a subclass adds to the scores.

    The layer is pure: it never owns memory (see `MemoryStack`), and gradients
    do flow into the `memory` it is given, unless that was stopped.

    Args:
        num_heads: Integer `N`.
        key_dim: Integer `H`, the size of a head. It need not be `D / N`.
        dropout: Float in `[0, 1)`, dropout on the attention probabilities.
        same_length: Every query attends equally far back, rather than to all
            of memory; needs a memory. `True`: to the M keys before it and
            itself, as the original TensorFlow code and NVIDIA's. `"pytorch"`:
            to one fewer, as the original PyTorch code and Hugging Face count.
        kernel_initializer: Initializer of all kernels and biases.
        seed: Optional integer for dropout.

    Call arguments:
        query: Tensor of shape `(B, T, D)`, the segment.
        memory: Optional tensor of shape `(B, M, D)`, the states before it.
        query_mask: Optional boolean `(B, T)`; false keys (padding) get no
            attention. Keras passes the mask of an `Embedding(mask_zero=True)`
            by itself.
        memory_mask: Optional boolean `(B, M)`, false where memory is empty.
        attention_mask: Optional boolean that broadcasts to `(B, T, S)`,
            combined with the causal mask.
        training: Boolean, for dropout.
        dropout_seed: Optional uint32 `(B,)`, see `RowDropout`.
        return_attention_scores: Boolean.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores=True` also
        the float32 probabilities `(B, N, T, S)`, before dropout.

    Raises:
        ValueError: On sizes that are not positive, an unknown `same_length`,
            or one without a memory.

    Example:

    ```python
    import keras
    from txl_keras.layers import CausalMultiHeadAttention

    segment = keras.Input((16, 32))
    attended = CausalMultiHeadAttention(num_heads=4, key_dim=8)(segment)
    model = keras.Model(segment, attended)  # (None, 16, 32)
    ```

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.
    """

    causal = True
    # Whether positions are what `tpu_attention` knows.
    has_kernel = False

    def __init__(
        self,
        num_heads,
        key_dim,
        dropout=0.0,
        same_length=False,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads, 1)
        check_integer("key_dim", key_dim, 1)
        if same_length not in SAME_LENGTHS:
            raise ValueError(
                f"`same_length` must be one of {SAME_LENGTHS}. "
                f"Received: same_length={same_length!r}"
            )
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.dropout = check_dropout("dropout", dropout)
        self.same_length = same_length
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True
        self._dropout = RowDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )
        self._query_dense = heads_dense(self, "btd,dnh->btnh", "query")
        self._key_dense = heads_dense(self, "bsd,dnh->bsnh", "key")
        self._value_dense = heads_dense(self, "bsd,dnh->bsnh", "value")
        self._output_dense = None  # its size, D, is known in `build`

    def _parameter(self, name, *shape):
        return self.add_weight(
            shape=shape,
            initializer=self.kernel_initializer.clone(),
            name=name,
        )

    def build(self, query_shape):
        self._hidden_dim = hidden_dim = query_shape[-1]
        self._output_dense = heads_dense(
            self, "btnh,nhd->btd", "output", output_shape=[None, hidden_dim]
        )
        for dense in (self._query_dense, self._key_dense, self._value_dense):
            dense.build((None, None, hidden_dim))
        self._output_dense.build((None, None, self.num_heads, self.key_dim))

    def call(
        self,
        query,
        memory=None,
        query_mask=None,
        memory_mask=None,
        attention_mask=None,
        training=None,
        dropout_seed=None,
        return_attention_scores=False,
    ):
        self._check_states(query, memory)
        return self._attend(
            PositionTerms(),
            query,
            memory,
            query_mask,
            memory_mask,
            attention_mask,
            training,
            dropout_seed,
            return_attention_scores,
        )

    def _check_states(self, query, memory):
        """Raises `ValueError` unless both are states of one size and batch."""
        check_shape("query", query, (None, None, self._hidden_dim))
        if memory is not None:
            expected = (query.shape[0], None, self._hidden_dim)
            check_shape("memory", memory, expected)

    def _attend(
        self,
        terms,
        query,
        memory,
        query_mask,
        memory_mask,
        attention_mask,
        training,
        dropout_seed,
        return_attention_scores,
    ):
        """Attention with scores of any kind.

        Args:
            terms: `PositionTerms`.
            query, ...: The call arguments.
        """
        if query_mask is None:
            # Keras itself passes it only where there is a memory too.
            query_mask = getattr(query, "_keras_mask", None)
        # Without that mask: it is handled here, the projections would warn
        # that they drop it.
        query = tf.identity(query)
        if memory is None and memory_mask is not None:
            raise ValueError(
                "`memory_mask` tells which entries of `memory` are real, so it "
                "needs one. Received: memory=None"
            )
        if memory is None and self.same_length:
            raise ValueError(
                "`same_length` lets a query see as many keys as memory has, so "
                "it needs a memory. Received: memory=None"
            )
        batch_size, length, _ = ops.shape(query)
        num_memory = 0 if memory is None else ops.shape(memory)[1]
        lengths = part_lengths(num_memory, length)
        query_mask = check_mask("query_mask", query_mask, (batch_size, length))
        memory_mask = check_mask(
            "memory_mask", memory_mask, (batch_size, num_memory)
        )
        attention_mask = check_mask(
            "attention_mask",
            attention_mask,
            (batch_size, length, num_memory + length),
            broadcasts=True,
        )
        key_mask = None
        if query_mask is not None or memory_mask is not None:
            key_mask = self._key_mask(query, memory, query_mask, memory_mask)
        seeds = None
        if training and self.dropout:
            seeds = self._dropout.row_seeds(ops.shape(query)[0], dropout_seed)
        arguments = terms, query, memory, lengths
        masks = key_mask, attention_mask
        is_plain = (
            self.causal
            and not return_attention_scores
            and _are_known(lengths, query)
        )
        if is_plain and self._has_kernel_for(memory, attention_mask):
            attended = self._attend_in_kernel(*arguments, key_mask, seeds)
        elif is_plain and is_for_cpu():
            attended = self._attend_in_blocks(*arguments, *masks, seeds)
        else:
            attended, probabilities = self._attend_at_once(
                *arguments, self._masks(lengths, *masks), seeds
            )
        # [B, T, D]
        output = self._output_dense(ops.transpose(attended, (1, 2, 0, 3)))
        if return_attention_scores:
            return output, probabilities()
        return output

    def _attend_at_once(self, terms, query, memory, lengths, masks, seeds):
        """Attention of all queries: see `attend`.

        Returns:
            Pair of a tensor `(N, B, T, H)` and a function that returns the
            probabilities, `(B, N, T, S)`.
        """
        keys, values = self._project_parts(query, memory, lengths)
        # Heads first here too: else XLA, which puts the batch axes of a product
        # in the order of its left side, transposes the scores by distance.
        projected = ops.transpose(self._project_query(query), (2, 0, 1, 3))
        content_query, position_query = terms.queries(projected)
        scores = [
            ops.einsum("nbth,bsnh->nbts", content_query, part) for part in keys
        ]
        if terms.by_distance is not None:
            align = scores_by_key if self.causal else scores_both_ways
            by_key = align(
                functools.partial(terms.by_distance, position_query),
                terms.positions,
                lengths,
            )
            scores = [a + b for a, b in zip(scores, by_key, strict=True)]
        keep, rate = None, 0.0
        if seeds is not None:
            rate = self.dropout
            keep = self._keep(lengths, seeds)
        masks = [ops.swapaxes(mask, 0, 1) for mask in masks]
        attended = attend(scores, masks, values, keep, rate)
        return attended, lambda: ops.swapaxes(
            masked_softmax(scores, masks), 0, 1
        )

    def _has_kernel_for(self, memory, attention_mask):
        is_asked = self.has_kernel and is_for_kernel()
        return is_asked and memory is not None and attention_mask is None

    def _attend_in_kernel(self, terms, query, memory, lengths, key_mask, seeds):
        """The same, `(N, B, T, H)`, by a kernel for TPUs."""
        *of_memory, length = lengths
        num_memory = sum(of_memory)
        shape = KernelShape(
            heads=self.num_heads,
            batch=query.shape[0],
            length=length,
            num_memory=num_memory,
            head_dim=self.key_dim,
            dtype=self.compute_dtype,
            farthest=self._farthest(num_memory),
            rate=0.0 if seeds is None else float(self.dropout),
        )
        if key_mask is None:
            key_mask = ops.ones((shape.batch, shape.num_keys), "bool")
        parts = memory, query
        return attend_in_kernel(
            shape,
            _heads_first(query, self._query_dense) * self.key_dim**-0.5,
            (terms.content_bias, terms.position_bias),
            [_heads_first(part, self._key_dense) for part in parts],
            [_heads_first(part, self._value_dense) for part in parts],
            *terms.positions,
            key_mask,
            seeds,
        )

    def _attend_in_blocks(
        self,
        terms,
        query,
        memory,
        lengths,
        key_mask,
        attention_mask,
        seeds,
    ):
        """The same, `(N, B, T, H)`, a block after the other."""
        rate = 0.0 if seeds is None else float(self.dropout)
        blocks = self._blocks(lengths, rate)
        masks = [
            _mask_of_block(block, key_mask, attention_mask) for block in blocks
        ]
        projected, keys, values = self._project_together(query, memory)
        content_query, position_query = terms.queries(projected)
        return attend_in_blocks(
            blocks,
            content_query,
            keys,
            values,
            *_for_blocks(terms, position_query),
            masks,
            seeds,
        )

    def _blocks(self, lengths, rate=0.0):
        *of_memory, length = lengths
        num_memory = sum(of_memory)
        return split_queries(
            length,
            num_memory=num_memory,
            farthest=self._farthest(num_memory),
            rate=rate,
            sizes=(self.num_heads, length, num_memory + length),
        )

    def _project_parts(self, query, memory, lengths):
        """Lists of the keys and the values of parts, `(B, S_i, N, H)`.

        Memory and segment are projected apart: they need not be joined, and
        where memory gets no gradient nothing is computed for it.
        """
        keys, values = [], []
        if len(lengths) > 1:
            keys = _split(self._key_dense(memory), lengths[:-1], axis=1)
            values = _split(self._value_dense(memory), lengths[:-1], axis=1)
        keys.append(self._key_dense(query))
        values.append(self._value_dense(query))
        return keys, values

    def _project_together(self, query, memory):
        """Scaled queries `(N, B, T, H)`, keys and values `(N, B, S, H)`.

        With kernels side by side, one product of all that is to be projected.
        """
        query, keys, values = _project(
            query, self._query_dense, self._key_dense, self._value_dense
        )
        if memory is not None and memory.shape[1]:
            of_memory = _project(memory, self._key_dense, self._value_dense)
            keys, values = (
                ops.concatenate(parts, axis=2)
                for parts in zip(of_memory, (keys, values), strict=True)
            )
        return query * self.key_dim**-0.5, keys, values

    def _keep(self, lengths, seeds):
        """Function of the probabilities that dropout keeps: see `attend`."""
        heads, length = self.num_heads, lengths[-1]
        sizes = [heads, length, sum(lengths)]
        ends = list(itertools.accumulate(lengths))

        def keep_part(first, end):
            places = [tf.range(heads), tf.range(length), tf.range(first, end)]
            return is_kept(self.dropout, seeds, sizes, places, batch_axis=1)

        return lambda: list(map(keep_part, [0, *ends[:-1]], ends))

    def _project_query(self, query):
        # Scaling the queries costs T N H products, the scores T S N.
        return self._query_dense(query) * self.key_dim**-0.5

    def attend_projected(self, query, past):
        """Attention to a past whose keys and values are there already.

        Inference only: the same numbers as a call, but a token is projected
        once, when it is read, and not again with every later segment.

        Args:
            query: Tensor of shape `(B, T, D)`, the segment.
            past: `Past`, what was read before.

        Returns:
            Triple of the output `(B, T, D)` and the keys and the values of
            the segment, `(B, N, T, H)`, to be remembered.
        """
        return self._attend_projected(PositionTerms(), query, past)

    def _attend_projected(self, terms, query, past):
        projected = ops.transpose(self._project_query(query), (2, 0, 1, 3))
        key, value = self.project(query)
        parts = [(key, value)]
        if past.keys.shape[2]:
            # In the order of its slots; the segment comes after it.
            parts = [(past.keys, past.values), *parts]
        content_query, position_query = terms.queries(projected)
        content_query = ops.swapaxes(content_query, 0, 1)
        lengths = [keys.shape[2] for keys, _ in parts]
        if is_for_cpu() and past.order is None and _are_known(lengths, query):
            blocks = self._blocks(lengths)
            key_mask = _with_segment(past.mask, query)
            attended = attend_to_parts(
                blocks,
                content_query,
                parts,
                *_for_blocks(terms, position_query),
                [_mask_of_block(block, key_mask, None) for block in blocks],
            )
        else:
            biases = self._position_biases(terms, query, position_query, past)
            attended = _attend_with_biases(content_query, parts, biases)
        return self._output_dense(ops.swapaxes(attended, 1, 2)), key, value

    def _position_biases(self, terms, query, position_query, past):
        """What is added to the scores of content.

        Made in the order of the text, where positions are a shift, and then
        put in the order of the slots.

        Returns:
            float32 `(B, N, T, M)`, unless M is 0, and `(B, N, T, T)`.
        """
        num_memory = past.keys.shape[2]
        lengths = [num_memory] * (num_memory > 0) + [ops.shape(query)[1]]
        masks = self._masks(lengths, _with_segment(past.mask, query))
        scores = [ops.zeros((), "float32")] * len(lengths)
        if terms.by_distance is not None:
            by_distance = terms.by_distance(position_query, *terms.positions)
            shifted = shift_nearest(by_distance, past.num_keys(query))
            scores = _split(ops.cast(shifted, "float32"), lengths)
        *memory, segment = [
            ops.where(mask, part, CLOSED)
            for mask, part in zip(masks, scores, strict=True)
        ]
        return [*(past.by_slot(part) for part in memory), segment]

    def project(self, states):
        """Keys and values of hidden states, heads first.

        Args:
            states: Tensor `(B, S, D)`.

        Returns:
            The pair of keys and values, `(B, N, S, H)`.
        """
        key, value = self._key_dense(states), self._value_dense(states)
        heads_first = (0, 2, 1, 3)
        return ops.transpose(key, heads_first), ops.transpose(
            value, heads_first
        )

    def _masks(self, lengths, key_mask=None, attention_mask=None):
        """Which keys a query may see.

        For T = 3, M = 2; `same_length=True` shuts the keys marked `s` too:

                 memory | segment
            i=0   1  1  |  1  .  .
            i=1   s  1  |  1  1  .
            i=2   s  s  |  1  1  1

        Args:
            lengths: Those of the parts of the keys, the segment last.
            key_mask: Optional boolean `(B, S)`.
            attention_mask: Optional, broadcasts to `(B, T, S)`.

        Returns:
            Boolean of each part, broadcasts to `(B, N, T, length)`; as small
            as what it is made of, since it is kept for the backward pass.
        """
        *of_memory, length = lengths
        num_memory = sum(of_memory)
        ends = list(itertools.accumulate(lengths))
        masks = []
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            keys = ops.arange(first, end)
            distance = num_memory + ops.arange(length)[:, None] - keys
            conditions = _given_masks(key_mask, attention_mask, first, end)
            farthest = self._farthest(num_memory)
            if farthest is not None:
                conditions.append(distance <= farthest)
            masks.append(conditions)
        if self.causal:
            # What memory holds is before all queries.
            masks[-1].append(distance >= 0)
        return [
            functools.reduce(ops.logical_and, conditions)[:, None]
            for conditions in masks
        ]

    def _farthest(self, num_memory):
        """The distance beyond which `same_length` shuts a key, or `None`."""
        if not self.same_length:
            return None
        if self.same_length == "pytorch":
            # There the query's own key counts; it is never shut.
            farthest = num_memory - 1
            is_known = isinstance(num_memory, int)
            return max(farthest, 0) if is_known else ops.maximum(farthest, 0)
        return num_memory

    def _key_mask(self, query, memory, query_mask, memory_mask):
        if query_mask is None:
            query_mask = ops.ones(ops.shape(query)[:2], "bool")
        if memory is None:
            return query_mask
        if memory_mask is None:
            memory_mask = ops.ones(ops.shape(memory)[:2], "bool")
        return ops.concatenate([memory_mask, query_mask], axis=1)  # [B, S]

    def compute_output_shape(self, query_shape):
        return query_shape

    def compute_output_spec(
        self, query, memory=None, return_attention_scores=False, **kwargs
    ):
        output = keras.KerasTensor(query.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        batch, length = query.shape[:2]
        num_memory = 0 if memory is None else memory.shape[1]
        known = length is not None and num_memory is not None
        scores = keras.KerasTensor(
            (
                batch,
                self.num_heads,
                length,
                length + num_memory if known else None,
            ),
            dtype="float32",
        )
        return output, scores

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.dropout,
            "same_length": self.same_length,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "seed": self.seed,
        }


@dataclasses.dataclass(frozen=True)
class PositionTerms:
    """What a kind of attention adds to the products of queries and keys.

    Attributes:
        content_bias, position_bias: Optional tensors `(N, H)`, added to the
            scaled queries before they meet the keys, and the positions.
        by_distance: Optional function of the queries `(N, B, T, H)` and of
            `positions`. Returns scores `(N, B, T, R)`.
        positions: Tuple of tensors `(N, R, ...)`, a row a distance, the
            farthest first.
    """

    content_bias: object = None
    position_bias: object = None
    by_distance: object = None
    positions: tuple = ()

    def queries(self, query):
        """What meets the keys and what meets the positions.

        Args:
            query: Tensor `(N, B, T, H)`.

        Returns:
            Pair of tensors of that shape.
        """
        return [
            query if bias is None else query + ops.expand_dims(bias, (1, 2))
            for bias in (self.content_bias, self.position_bias)
        ]


def _heads_first(states, layer):
    """States `(B, S, D)` by a layer: `(N, B, S, H)`."""
    kernel = with_row_major_gradient(ops.cast(layer.kernel, states.dtype))
    return tf.einsum("bsd,dnh->nbsh", states, kernel)


def _project(states, *layers):
    """States `(B, S, D)` by several layers: tensors `(N, B, S, H)`."""
    kernel = ops.concatenate([layer.kernel for layer in layers], axis=1)
    projected = ops.transpose(tf.tensordot(states, kernel, 1), (2, 0, 1, 3))
    return tf.split(projected, len(layers), axis=0)


def _are_known(lengths, query):
    return all(isinstance(x, int) for x in (*lengths, query.shape[0]))


def _mask_of_block(block, key_mask, attention_mask):
    """What else shuts keys, broadcasts to `(N, B, t, s)`."""
    conditions = _given_masks(key_mask, attention_mask, 0, block.num_keys)
    mask = functools.reduce(ops.logical_and, conditions)
    if mask.shape[1] != 1:
        mask = mask[:, block.first : block.end]
    return mask[None]


def _given_masks(key_mask, attention_mask, first, end):
    """What a call shuts of some keys: booleans that broadcast to `(B, T, n)`.

    The first has three axes, and so has what they make together.
    """
    masks = [ops.ones((1, 1, 1), "bool")]
    if attention_mask is not None:
        masks.append(_columns(attention_mask, first, end))
    if key_mask is not None:
        masks.append(key_mask[:, None, first:end])
    return masks


def _columns(mask, first, end):
    """Of a mask that broadcasts to `(B, T, S)`."""
    return mask if mask.shape[-1] == 1 else mask[..., first:end]


def _split(tensor, lengths, axis=-1):
    """A list of parts of these lengths."""
    if len(lengths) == 1:
        return [tensor]
    return tf.split(tensor, lengths, axis=axis)


def _with_segment(memory_mask, query):
    """Of memory `(B, M)`, and the segment, all of which is real: `(B, S)`."""
    segment_mask = ops.ones(ops.shape(query)[:2], "bool")
    return ops.concatenate([memory_mask, segment_mask], axis=1)


def _for_blocks(terms, position_query):
    """What `attend_in_blocks` is to know of positions."""
    if terms.by_distance is None:
        return None, ()
    return terms.by_distance, (position_query, *terms.positions)


def _attend_with_biases(query, parts, biases):
    """`softmax(query keys + biases) values` over keys in several tensors.

    The same numbers as of the tensors joined, but nothing is joined or taken
    apart, and the attended values are divided rather than the many
    probabilities: half the passes over `(B, N, T, S)`.

    Args:
        query: Tensor `(B, N, T, H)`.
        parts: Pairs of keys and values `(B, N, S_i, H)`.
        biases: Float32 tensors, broadcast to `(B, N, T, S_i)`.

    Returns:
        Tensor `(B, N, T, H)` of the dtype of the values.
    """
    # As products of matrices: of an einsum XLA transposes the keys first.
    scores = [
        tf.cast(tf.matmul(query, keys, transpose_b=True), "float32") + bias
        for (keys, _), bias in zip(parts, biases, strict=True)
    ]
    exponentials, _, total = exponentials_of_parts(scores)
    attended = tf.add_n(
        [
            tf.matmul(tf.cast(weights, query.dtype), values)
            for weights, (_, values) in zip(exponentials, parts, strict=True)
        ]
    )
    return tf.cast(tf.cast(attended, "float32") / total, query.dtype)
