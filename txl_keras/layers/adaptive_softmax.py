"""Adaptive softmax, over clusters of a large vocabulary.

More letters: `C` tails (clusters after the first), `R` rows (all `B T`
tokens), `K` rows per pass, `n` words of a cluster, `e` size of its embeddings.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_shape_in_graph
from txl_keras.layers.adaptive_embedding import ClusteredLayer
from txl_keras.layers.adaptive_embedding import known_ids
from txl_keras.layers.compute.target import fused
from txl_keras.types import Tensor


@keras.saving.register_keras_serializable(package="txl_keras")
class AdaptiveSoftmax(ClusteredLayer):
    """Computes a softmax over the clusters of an embedding.

    The first cluster is the head, the others are the tails. The head is a
    softmax over the words of the first cluster and one entry per tail. A word
    of the first cluster has its head probability. A word `w` of tail `i` has
    the probability

        p(w | h) = p_head(tail i | h) p_tail_i(w | h)

    The loss is exact and keeps the order of the tokens. A tail is computed only
    for tokens whose target is in it, in as many passes of K rows as needed. So
    shapes are static for XLA and TPUs, no token is dropped, and a tail without
    tokens costs nothing. Logits of tails are recomputed for the gradient and
    not stored.

    Without cutoffs it is an ordinary softmax. Everything is computed in
    float32.

    Args:
        embedding: The `AdaptiveEmbedding` that provides the clusters, and
            optionally weights. `keras.models.load_model` shares it again; a
            functional model of `keras.models.clone_model` has a copy, to which
            nothing is tied.
        tie_embeddings: Boolean, whether tables are shared with `embedding`.
        tie_projections: Whether projections are shared with `embedding`: a
            boolean, `"all_but_first"`, or a sequence with one boolean per
            cluster.
        tail_rows: Optional integer `K`, the rows per pass. By default 1/16 of
            the tokens, rounded up to a multiple of 16, or 64 if the number of
            tokens is not static.
        kernel_initializer, projection_initializer: Initializers of tables and
            projections that are not shared. Other weights start as zeros.

    Call arguments:
        hidden: Tensor of shape `(..., D)`.
        targets: Optional integer tensor of shape `(...)`, ids in `[0, V)`.

    Returns:
        Negative log-likelihood in nats, float32 `(...)`. When compiled by XLA,
        which cannot raise errors, targets outside `[0, V)` give NaN. Without
        targets, the log-probabilities of all words, float32 `(..., V)`.

    Raises:
        tf.errors.InvalidArgumentError: If a target is not in `[0, V)`, in a
            `tf.function` without XLA; or if a shape that is only known at run
            time does not fit.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import AdaptiveEmbedding, AdaptiveSoftmax

    embedding = AdaptiveEmbedding(1000, 64, cutoffs=(100, 400), div_val=4)
    softmax = AdaptiveSoftmax(embedding)
    hidden = np.ones((2, 3, 64), "float32")
    nll = softmax(hidden, np.array([[5, 150, 999], [0, 1, 2]]))  # (2, 3)
    log_probs = softmax.log_probs(hidden)  # (2, 3, 1000)
    ```

    Reference:
        [Grave et al., 2017](https://arxiv.org/abs/1609.04309), section 4.
    """

    def __init__(
        self,
        embedding: Any,
        tie_embeddings: bool = True,
        tie_projections: bool | str = True,
        tail_rows: int | None = None,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        projection_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.embedding = embedding
        self.tie_embeddings = tie_embeddings
        self.tie_projections = _one_per_cluster(
            tie_projections, embedding.num_clusters
        )
        if tail_rows is not None:
            check_integer("tail_rows", tail_rows, 1)
        self.tail_rows = tail_rows
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projection_initializer = keras.initializers.get(
            projection_initializer
        )
        self.supports_masking = True

    def build(self, hidden_shape=None, targets_shape=None):
        embedding = self.embedding
        if not embedding.built:
            embedding.build()
        self.biases = [
            self._weight(f"bias_{i}", (embedding.cluster_size(i),), "zeros")
            for i in range(embedding.num_clusters)
        ]
        self.kernels = None
        if not self.tie_embeddings:
            self.kernels = self._tables(
                embedding, "kernel", self.kernel_initializer
            )
        self.projections = self._projections(
            embedding, [not is_tied for is_tied in self.tie_projections]
        )
        if embedding.cutoffs:
            # The head's softmax has one entry per tail.
            num_tails = len(embedding.cutoffs)
            self.cluster_kernel = self._weight(
                "cluster_kernel", (num_tails, embedding.dims[0]), "zeros"
            )
            self.cluster_bias = self._weight(
                "cluster_bias", (num_tails,), "zeros"
            )
        self.built = True

    def call(self, hidden, targets=None):
        if targets is None:
            return self.log_probs(hidden)
        targets, known = known_ids("targets", targets, self.embedding.input_dim)
        shape = keras.ops.shape(hidden)[:-1]
        targets = check_shape_in_graph("targets", targets, shape)
        hidden = self._checked(hidden)
        hidden = ops.reshape(hidden, (-1, self.embedding.output_dim))  # [R, D]
        nll = self._nll(hidden, ops.reshape(targets, (-1,)))
        nll = ops.reshape(nll, ops.shape(targets))
        return ops.where(known, nll, float("nan"))

    def _checked(self, hidden):
        size, expected = hidden.shape[-1], self.embedding.output_dim
        if size not in (None, expected):
            raise ValueError(
                f"`hidden` must have the shape (..., {expected}), as the "
                f"embedding. Received: hidden.shape={tuple(hidden.shape)}"
            )
        return ops.cast(hidden, "float32")

    def _nll(self, hidden, targets):
        if not ON_TENSORFLOW:
            log_probs = self.log_probs(hidden)
            return -ops.take_along_axis(log_probs, targets[:, None], 1)[:, 0]
        # The cluster of a target is the number of cutoffs that it reaches.
        cluster = tf.zeros_like(targets)
        for cutoff in self.embedding.cutoffs:
            cluster += tf.cast(targets >= cutoff, tf.int32)
        parts, biases = self._head_logit_parts(hidden)
        words = tf.where(cluster == 0, targets, -1)
        nll = _nll_of_parts(parts, biases, [words, cluster - 1][: len(parts)])
        # Sorted by cluster, the rows of each tail are contiguous.
        order = tf.argsort(cluster, stable=True)
        # About the share of tokens in a tail of natural text, with well-chosen
        # cutoffs. Fewer rows need more passes; more rows are wasted.
        num_rows = hidden.shape[0] or 1024  # if not static
        rows_per_pass = self.tail_rows or math.ceil(num_rows / 16 / 16) * 16
        stop = tf.reduce_sum(tf.cast(cluster == 0, tf.int32))
        for i in range(1, self.embedding.num_clusters):
            start = stop
            stop += tf.reduce_sum(tf.cast(cluster == i, tf.int32))
            nll += _tail_nll(
                hidden,
                targets - self.embedding.bounds[i],
                self._tables_of(i),
                order,
                start,
                stop,
                rows_per_pass,
            )
        return nll

    def _tables_of(self, cluster):
        """Returns a cluster's table, bias and projection, if it has one."""
        tables = self.kernels or self.embedding.embeddings
        projection = self.projections[cluster]
        if self.tie_projections[cluster]:
            projection = self.embedding.projection(cluster)
        parameters = tables[cluster], self.biases[cluster], projection
        return [ops.cast(x, "float32") for x in parameters if x is not None]

    def _head_logit_parts(self, hidden):
        """Returns lists of the head's logits without biases, and of biases."""
        if not self.built:  # a first call of `log_probs`, not of the layer
            self.build()
        kernel, bias, *projection = self._tables_of(0)
        hidden = _project(hidden, *projection)
        kernels, biases = [kernel], [bias]
        if self.embedding.cutoffs:
            # Two matmuls, because joining the kernels would copy the first.
            kernels.append(ops.cast(self.cluster_kernel, "float32"))
            biases.append(ops.cast(self.cluster_bias, "float32"))
        return [_project(hidden, kernel) for kernel in kernels], biases

    def _head_logits(self, hidden):
        parts, biases = self._head_logit_parts(hidden)
        logits = [a + b for a, b in zip(parts, biases, strict=True)]
        return ops.concatenate(logits, axis=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Computes logits over the vocabulary.

        Args:
            hidden: Tensor of shape `(..., D)`.

        Returns:
            Float32 tensor `(..., V)`: unnormalized logits if there is only one
            cluster, otherwise log-probabilities, which have the same softmax.
        """
        if self.embedding.cutoffs:
            return self.log_probs(hidden)
        return self._head_logits(self._checked(hidden))

    def log_probs(
        self, hidden: Tensor, needed: Callable | None = None
    ) -> Tensor:
        """Computes the log-probabilities of all words, in the order of ids.

        Args:
            hidden: Tensor of shape `(..., D)`.
            needed: Optional function that selects the tails to compute. Its
                arguments are log-probabilities of the words of the first
                cluster, float32 `(..., n)`, and of each tail as a whole,
                float32 `(..., C)`. It returns a boolean tensor `(C,)`.

        Returns:
            Float32 tensor `(..., V)`; negative infinity for words of tails
            that are not computed.
        """
        hidden = self._checked(hidden)
        head = ops.log_softmax(self._head_logits(hidden))
        first_size = self.embedding.cluster_size(0)
        # Log-probabilities of the first words, and of whole tails.
        words, tails = head[..., :first_size], head[..., first_size:]
        is_needed = needed and needed(words, tails)
        parts = [words]
        for i in range(1, self.embedding.num_clusters):
            tail = tails[..., i - 1, None]

            def compute(i=i, tail=tail):
                logits = _logits(hidden, *self._tables_of(i))
                return ops.log_softmax(logits) + tail

            def skip(i=i, tail=tail):
                shape = *ops.shape(tail)[:-1], self.embedding.cluster_size(i)
                return ops.full(shape, -float("inf"), "float32")

            parts.append(
                ops.cond(is_needed[i - 1], compute, skip)
                if needed
                else compute()
            )
        return ops.concatenate(parts, axis=-1)

    def sample(
        self,
        hidden: Tensor,
        sampler: Any,
        seeds: Tensor,
        seen: Tensor | None = None,
    ) -> Tensor:
        """Samples one word per row; computes only the tails that it needs.

        If the sampler has filters, the ids equal `sampler(softmax.log_probs(
        hidden), seeds, seen)`. Otherwise it draws from the head first, then
        within the drawn tail: ids differ, but their distribution is the same. A
        tail that is needed for one row is computed for all rows.

        Args:
            hidden: Tensor of shape `(B, D)`.
            sampler: `txl_keras.samplers.Sampler`.
            seeds: uint32 tensor `(B,)`, one seed per row.
            seen: Optional boolean tensor `(B, V)`, true for words that the
                repetition penalty applies to.

        Returns:
            int32 tensor `(B,)` of ids, -1 for rows with NaN.

        Example:

        ```python
        import numpy as np
        from txl_keras.layers import AdaptiveEmbedding, AdaptiveSoftmax
        from txl_keras.samplers import Sampler

        softmax = AdaptiveSoftmax(AdaptiveEmbedding(1000, 64, cutoffs=(100,)))
        hidden, seeds = np.ones((2, 64)), np.uint32([1, 2])
        ids = softmax.sample(hidden, Sampler(top_k=10), seeds)
        ```
        """
        hidden = self._checked(hidden)

        def draw_head_first():
            return self._sample_head_first(hidden, sampler, seeds)

        def draw():
            log_probs = self.log_probs(
                hidden,
                lambda words, tails: sampler.needed_tails(words, tails, seen),
            )
            return sampler(log_probs, seeds, seen)

        if ops.is_tensor(sampler.is_plain):
            return ops.cond(sampler.is_plain, draw_head_first, draw)
        return draw_head_first() if sampler.is_plain else draw()

    def _sample_head_first(self, hidden, sampler, seeds):
        embedding = self.embedding
        # Entries of tails have ids beyond the vocabulary, so that their noise
        # differs from the noise of all words.
        first_tail = embedding.input_dim
        words = ops.arange(embedding.cluster_size(0))
        tails = first_tail + ops.arange(embedding.num_clusters - 1)
        entries = ops.concatenate([words, tails])
        entry = sampler.draw(self._head_logits(hidden), seeds, entries)
        ids = entry
        for i in range(1, embedding.num_clusters):
            is_drawn = entry == first_tail + i - 1

            def draw_inside(i=i, ids=ids, is_drawn=is_drawn):
                logits = _logits(hidden, *self._tables_of(i))
                words = ops.arange(*embedding.bounds[i : i + 2])
                inside = sampler.draw(logits, seeds, words)
                return ops.where(is_drawn, inside, ids)

            ids = ops.cond(ops.any(is_drawn), draw_inside, lambda ids=ids: ids)
        return ids

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})


def _one_per_cluster(tie_projections, num_clusters):
    if tie_projections == "all_but_first":
        return (False,) + (True,) * (num_clusters - 1)
    if isinstance(tie_projections, bool):
        return (tie_projections,) * num_clusters
    is_list = isinstance(tie_projections, (list, tuple))
    if not is_list or len(tie_projections) != num_clusters:
        raise ValueError(
            "`tie_projections` must be a boolean, 'all_but_first' or one "
            f"boolean per cluster, {num_clusters} of them. Received: "
            f"tie_projections={tie_projections}"
        )
    return tuple(bool(tie) for tie in tie_projections)


def _logits(hidden, kernel, bias, projection=None):
    """Computes logits `(..., n)` from `(..., D)`, for a table `(n, e)`."""
    return _project(_project(hidden, projection), kernel) + bias


def _project(hidden, table=None):
    """Multiplies `(..., e)` by the rows of a table `(n, e)`, if given."""
    if table is None:
        return hidden
    if not ON_TENSORFLOW:
        return ops.matmul(hidden, ops.transpose(table))
    return tf.matmul(hidden, table, transpose_b=True)  # copies no table


def _nll_of_parts(parts, biases, targets, axis=-1):
    """Computes the loss `(K,)` of classes that are split over several parts."""
    # Each part has logits without biases, `(K, n_i)`, or `(n_i, K)` if `axis`
    # is 0; biases `(n_i,)`; and targets `(K,)`, -1 if in another part.
    # With a custom gradient, forward and backward are one pass each over
    # hundreds of thousands of classes.

    @tf.custom_gradient
    def nll(*tensors):
        value, *norm = _softmax_nll(tensors, targets, axis)

        def gradient(upstream):
            return _softmax_nll_gradient(tensors, targets, axis, norm, upstream)

        return value, gradient

    return nll(*parts, *biases)


def _logits_of_parts(tensors, axis):
    num_parts = len(tensors) // 2
    return [
        part + tf.expand_dims(bias, -1 - axis)  # axis of the rows
        for part, bias in zip(
            tensors[:num_parts], tensors[num_parts:], strict=True
        )
    ]


def _is_target(ids, logits, axis):
    return tf.one_hot(
        ids, logits.shape[axis], on_value=True, off_value=False, axis=axis
    )


@fused
def _softmax_nll(tensors, targets, axis):
    """Computes the loss, the max, and the log of the sum, each `(K,)`."""
    parts = _logits_of_parts(tensors, axis)
    max_logit = functools.reduce(
        tf.maximum, [tf.reduce_max(logits, axis) for logits in parts]
    )
    total, target = 0.0, 0.0
    for logits, ids in zip(parts, targets, strict=True):
        # The max is subtracted first: large logits would cost digits.
        logits = logits - tf.expand_dims(max_logit, axis)
        total += tf.reduce_sum(tf.exp(logits), axis)
        is_target = _is_target(ids, logits, axis)
        target += tf.reduce_sum(tf.where(is_target, logits, 0.0), axis)
    log_total = tf.math.log(total)
    return log_total - target, max_logit, log_total


@fused
def _softmax_nll_gradient(tensors, targets, axis, norm, upstream):
    """Computes the gradients of the parts, then of the biases."""
    max_logit, log_total, upstream = (
        tf.expand_dims(x, axis) for x in (*norm, upstream)
    )
    gradients = []
    for logits, ids in zip(
        _logits_of_parts(tensors, axis), targets, strict=True
    ):
        probabilities = tf.exp(logits - max_logit - log_total)
        is_target = _is_target(ids, logits, axis)
        gradients.append(
            upstream * (probabilities - tf.cast(is_target, tf.float32))
        )
    return *gradients, *(tf.reduce_sum(part, -1 - axis) for part in gradients)


def _tail_nll(hidden, targets, parameters, order, start, stop, rows_per_pass):
    """Computes the loss of rows `order[start:stop]` in a tail, else zeros."""
    # `order` sorts the R rows by cluster; `targets` are indices in the tail.
    # The gradient repeats the passes, so memory only holds one pass and one
    # dense gradient of the table.
    num_rows = tf.shape(order)[0]
    last_target = parameters[0].shape[0] - 1

    def rows_of(position):
        """Returns the rows of the pass at `position`, and which are real."""
        positions = position + tf.range(rows_per_pass)
        # Positions past the end use the last row; callers mask them.
        rows = tf.gather(order, tf.minimum(positions, num_rows - 1))
        return rows, positions < stop

    def nll_of(rows, hidden_rows, kernel, bias, *projection):
        inside = tf.clip_by_value(tf.gather(targets, rows), 0, last_target)
        hidden_rows = _project(hidden_rows, *projection)
        # The matmul is table times rows: on CPUs, XLA takes only 0.8 (48 rows)
        # to 0.5 (16 rows) of the time of rows times table.
        logits = tf.matmul(kernel, hidden_rows, transpose_b=True)  # [n, K]
        return _nll_of_parts([logits], [bias], [inside], axis=0)

    def sum_over_passes(body, *values):
        """Runs `body` for all passes and carries its sums."""

        def one_pass(position, *sums):
            return position + rows_per_pass, *body(position, *sums)

        _, *sums = tf.while_loop(
            lambda position, *sums: position < stop, one_pass, (start, *values)
        )
        return sums

    @tf.custom_gradient
    def nll_and_gradient(hidden, *parameters):
        def forward(position, nll):
            rows, real = rows_of(position)
            part = nll_of(rows, tf.gather(hidden, rows), *parameters)
            return [_scatter_add(nll, rows, tf.where(real, part, 0.0))]

        def backward(upstream):
            def gradients(position, hidden_sum, *sums):
                rows, real = rows_of(position)
                hidden_rows = tf.gather(hidden, rows)
                with tf.GradientTape() as tape:
                    tape.watch((hidden_rows, parameters))
                    part = nll_of(rows, hidden_rows, *parameters)
                hidden_gradient, *parameter_gradients = tape.gradient(
                    part,
                    [hidden_rows, *parameters],
                    tf.where(real, tf.gather(upstream, rows), 0.0),
                    unconnected_gradients="zero",
                )
                sums = map(tf.add, sums, parameter_gradients)
                return [_scatter_add(hidden_sum, rows, hidden_gradient), *sums]

            zeros = map(tf.zeros_like, (hidden, *parameters))
            return sum_over_passes(gradients, *zeros)

        (nll,) = sum_over_passes(forward, tf.zeros_like(hidden[:, 0]))
        return nll, backward

    return nll_and_gradient(hidden, *parameters)


def _scatter_add(total, rows, values):
    return tf.tensor_scatter_nd_add(total, rows[:, None], values)
