"""Softmax over a large vocabulary, in clusters.

Letters: `B` batch, `T` segment, `D` hidden size, `V` vocabulary, `C` clusters
after the first, `R` rows: all `B T` tokens, `K` rows of one pass.
"""

import functools
import math

import keras
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.layers.compute.target import fused


@keras.saving.register_keras_serializable(package="txl_keras")
class AdaptiveSoftmax(keras.layers.Layer):
    """Adaptive softmax over the clusters of an `AdaptiveEmbedding`.

    The head is a softmax over the first cluster and one entry for each of the
    others, the tails; a word of tail `i` has the probability

        p(w | h) = p_head(tail i | h) p_tail_i(w | h)

    The loss is exact and in the order of the tokens. A tail is computed only
    for tokens that it holds, in passes of a fixed number of rows: as many as
    it takes, so shapes are static (XLA, TPU), nothing is dropped, and a tail
    that no token fell in costs nothing. Logits of a tail are not stored, but
    computed again for the gradient.

    Without cutoffs it is an ordinary softmax. All is computed in float32.

    Args:
        embedding: The `AdaptiveEmbedding` whose clusters these are, and whose
            weights may be shared.
        tie_embeddings: Boolean, the tables are those of `embedding`.
        tie_projections: Boolean, `"all_but_first"`, or a boolean a cluster:
            the projections are those of `embedding`.
        tail_rows: Optional integer `K`, rows of one pass; by default a
            sixteenth of the tokens, rounded up to a multiple of 16 (64 where
            the number of tokens is known at run time only).
        kernel_initializer, projection_initializer: Initializers of tables and
            projections that are not shared. All else begins as zeros.

    Call arguments:
        hidden: Tensor `(..., D)`.
        targets: Optional integer tensor `(...)`, ids in `[0, V)`.

    Returns:
        Negative log-likelihood in nats, float32 `(...)`. Compiled by XLA,
        which cannot raise errors, a target outside `[0, V)` gives NaN.
        Without targets, the log-probabilities of all words, float32
        `(..., V)`.

    Raises:
        ValueError: If `tie_projections` does not fit the clusters, if targets
            are no integers, have another shape than `hidden` less its last
            axis or, called eagerly, are not in `[0, V)`.
        tf.errors.InvalidArgumentError: If, in a `tf.function`, a target is not
            in `[0, V)` or the shape of targets is known to be another only
            when it runs.

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
        embedding,
        tie_embeddings=True,
        tie_projections=True,
        tail_rows=None,
        kernel_initializer="glorot_uniform",
        projection_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.embedding = embedding
        self.tie_embeddings = tie_embeddings
        self.tie_projections = _one_a_cluster(
            tie_projections, embedding.num_clusters
        )
        if tail_rows is not None:
            check_integer("tail_rows", tail_rows, 1)
        self.tail_rows = tail_rows
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projection_initializer = keras.initializers.get(
            projection_initializer
        )

    def build(self, hidden_shape=None, targets_shape=None):
        embedding = self.embedding
        if not embedding.built:
            embedding.build()
        clusters = range(embedding.num_clusters)
        self.biases = [
            self._weight(f"bias_{i}", (embedding.cluster_size(i),), "zeros")
            for i in clusters
        ]
        self.kernels = None
        if not self.tie_embeddings:
            self.kernels = [
                self._weight(
                    f"kernel_{i}",
                    (embedding.cluster_size(i), embedding.dims[i]),
                    self.kernel_initializer.clone(),
                )
                for i in clusters
            ]
        self.projections = [
            self._weight(
                f"projection_{i}",
                (embedding.dims[i], embedding.output_dim),
                self.projection_initializer.clone(),
            )
            if embedding.needs_projection(i) and not self.tie_projections[i]
            else None
            for i in clusters
        ]
        if embedding.cutoffs:
            # The entries of the head that stand for the tails.
            num_tails = len(embedding.cutoffs)
            self.cluster_kernel = self._weight(
                "cluster_kernel", (num_tails, embedding.dims[0]), "zeros"
            )
            self.cluster_bias = self._weight(
                "cluster_bias", (num_tails,), "zeros"
            )
        self.built = True

    def _weight(self, name, shape, initializer):
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, autocast=False
        )

    def call(self, hidden, targets=None):
        if targets is None:
            return self.log_probs(hidden)
        targets = tf.convert_to_tensor(
            check_token_ids("targets", targets, self.embedding.input_dim)
        )
        targets = check_shape_in_graph(
            "targets", targets, keras.ops.shape(hidden)[:-1]
        )
        if targets.dtype.size < 4:  # 256 of uint8 would be 0
            targets = tf.cast(targets, tf.int32)
        shape = tf.shape(targets)
        hidden = tf.cast(hidden, tf.float32)
        hidden = tf.reshape(hidden, (-1, self.embedding.output_dim))  # [R, D]
        flat = tf.reshape(targets, (-1,))
        known = (flat >= 0) & (flat < self.embedding.input_dim)
        flat = tf.cast(tf.where(known, flat, tf.zeros_like(flat)), tf.int32)
        nll = tf.where(known, self._nll(hidden, flat), float("nan"))
        return tf.ensure_shape(tf.reshape(nll, shape), targets.shape)

    def _nll(self, hidden, targets):
        # Which cluster a target is in: how many cutoffs it has reached.
        cluster = tf.zeros_like(targets)
        for cutoff in self.embedding.cutoffs:
            cluster += tf.cast(targets >= cutoff, tf.int32)
        nll = self._head_nll(
            hidden, tf.where(cluster == 0, targets, -1), cluster
        )
        # Rows of the same cluster, one after the other.
        order = tf.argsort(cluster, stable=True)
        rows_of_a_pass = self._rows_of_a_pass(hidden)
        stop = tf.reduce_sum(tf.cast(cluster == 0, tf.int32))
        for i in range(1, self.embedding.num_clusters):
            start = stop
            stop += tf.reduce_sum(tf.cast(cluster == i, tf.int32))
            nll += _nll_of_some_rows(
                hidden,
                targets - self.embedding.bounds[i],
                self._parameters(i),
                order,
                start,
                stop,
                rows_of_a_pass,
            )
        return nll

    def _head_nll(self, hidden, words, cluster):
        """Of words of the first cluster, -1 elsewhere, and of the clusters."""
        parts, biases = self._head_products(hidden)
        return _nll_of_parts(parts, biases, [words, cluster - 1][: len(parts)])

    def _rows_of_a_pass(self, hidden):
        if self.tail_rows is not None:
            return self.tail_rows
        # About what falls in a tail of natural text, where the cutoffs were
        # well chosen: fewer rows make more passes, more rows are idle.
        num_rows = hidden.shape[0] or 1024  # not known before the call
        return math.ceil(num_rows / 16 / 16) * 16

    def _parameters(self, cluster):
        """Table, bias and, where there is one, projection of a cluster."""
        projection = self.projections[cluster]
        if self.tie_projections[cluster]:
            projection = self.embedding.projection(cluster)
        tables = (
            self.embedding.embeddings if self.tie_embeddings else self.kernels
        )
        parameters = [tables[cluster], self.biases[cluster], projection]
        return [
            tf.convert_to_tensor(weight)
            for weight in parameters
            if weight is not None
        ]

    def _head_products(self, hidden):
        """Of the words of the first cluster; if there are tails, of these.

        Returns:
            Pair of lists: logits without biases, and biases.
        """
        if not self.built:  # `log_probs` may be what is called first
            self.build()
        kernel, bias, *projection = self._parameters(0)
        hidden = _project(hidden, *projection)
        kernels, biases = [kernel], [bias]
        if self.embedding.cutoffs:
            # Two products: to join the kernels would copy all of the first.
            kernels.append(self.cluster_kernel)
            biases.append(self.cluster_bias)
        biases = list(map(tf.convert_to_tensor, biases))
        return [_products(hidden, kernel) for kernel in kernels], biases

    def _head_logits(self, hidden):
        parts, biases = self._head_products(hidden)
        logits = [a + b for a, b in zip(parts, biases, strict=True)]
        return tf.concat(logits, axis=-1)

    def logits(self, hidden):
        """What a softmax over the vocabulary makes probabilities of.

        Args:
            hidden: Tensor `(..., D)`.

        Returns:
            Float32 tensor `(..., V)`: logits as they are where there is one
            cluster, else log-probabilities, which are logits too.
        """
        if self.embedding.cutoffs:
            return self.log_probs(hidden)
        return self._head_logits(tf.cast(hidden, tf.float32))

    def log_probs(self, hidden, needed=None):
        """Log-probabilities of all words, in the order of their ids.

        Args:
            hidden: Tensor `(..., D)`.
            needed: Optional function of log-probabilities: those of the words
                of the first cluster, float32 `(..., n)`, and of each tail as a
                whole, float32 `(..., C)`. It returns a boolean tensor `(C,)`,
                which of the tails to compute.

        Returns:
            Float32 tensor `(..., V)`, negative infinity for words of tails
            that are not needed.
        """
        hidden = tf.cast(hidden, tf.float32)
        words, tails = self._head_log_probs(hidden)
        is_needed = needed and needed(words, tails)
        parts = [words]
        for i in range(1, self.embedding.num_clusters):

            def compute(i=i):
                inside = self._inside_log_probs(hidden, i)
                return inside + tails[..., i - 1, None]

            def leave_out(i=i):
                size = self.embedding.cluster_size(i)
                return tf.zeros_like(tails[..., :1]) + tf.fill(
                    (size,), -float("inf")
                )

            if needed is None:
                parts.append(compute())
            else:
                parts.append(tf.cond(is_needed[i - 1], compute, leave_out))
        return tf.concat(parts, axis=-1)

    def sample(self, hidden, sampler, seeds, seen=None):
        """Draws words, and computes only the tails that it needs for it.

        Tails of which no word can be drawn are left out, wherever the sampler
        knows it from the head (see `Sampler.needed_tails`): the ids are those
        of `sampler(softmax.log_probs(hidden), seeds, seen)`. A sampler that
        changes nothing draws from the head first, then inside a tail if it
        drew this one: other ids, of the same distribution. A tail is computed
        for all rows if it is for one.

        Args:
            hidden: Tensor `(B, D)`.
            sampler: `txl_keras.serving.Sampler`.
            seeds: uint32 tensor `(B,)`, one a row.
            seen: Optional boolean tensor `(B, V)`, for a sampler with a
                repetition penalty.

        Returns:
            int32 tensor `(B,)`: ids, or -1 where a row has NaN.

        Example:

        ```python
        import tensorflow as tf
        from txl_keras.layers import AdaptiveEmbedding, AdaptiveSoftmax
        from txl_keras.serving import Sampler

        softmax = AdaptiveSoftmax(AdaptiveEmbedding(1000, 64, cutoffs=(100,)))
        hidden, seeds = tf.ones((2, 64)), tf.constant([1, 2], tf.uint32)
        ids = softmax.sample(hidden, Sampler(top_k=10), seeds)
        ```
        """
        hidden = tf.cast(hidden, tf.float32)

        def draw_tails_apart():
            return self._sample_head_first(hidden, sampler, seeds)

        def draw():
            log_probs = self.log_probs(
                hidden,
                lambda words, tails: sampler.needed_tails(words, tails, seen),
            )
            return sampler(log_probs, seeds, seen)

        if tf.is_tensor(sampler.is_plain):
            return tf.cond(sampler.is_plain, draw_tails_apart, draw)
        return draw_tails_apart() if sampler.is_plain else draw()

    def _sample_head_first(self, hidden, sampler, seeds):
        embedding = self.embedding
        # Beyond the words: entries for the tails, with a noise of their own.
        first_tail = embedding.input_dim
        entries = tf.concat(
            [
                tf.range(embedding.cluster_size(0)),
                first_tail + tf.range(embedding.num_clusters - 1),
            ],
            axis=0,
        )
        entry = sampler.draw(self._head_logits(hidden), seeds, entries)
        ids = entry
        for i in range(1, embedding.num_clusters):
            is_drawn = entry == first_tail + i - 1

            def draw_inside(i=i, ids=ids, is_drawn=is_drawn):
                logits = _logits(hidden, *self._parameters(i))
                words = tf.range(*embedding.bounds[i : i + 2])
                inside = sampler.draw(logits, seeds, words)
                return tf.where(is_drawn, inside, ids)

            ids = tf.cond(
                tf.reduce_any(is_drawn), draw_inside, lambda ids=ids: ids
            )
        return ids

    def _head_log_probs(self, hidden):
        """Of the words of the first cluster, and of each tail as a whole."""
        head = tf.nn.log_softmax(self._head_logits(hidden))
        first_size = self.embedding.cluster_size(0)
        return head[..., :first_size], head[..., first_size:]

    def _inside_log_probs(self, hidden, cluster):
        """Of the words of a tail, if it is the one."""
        return tf.nn.log_softmax(_logits(hidden, *self._parameters(cluster)))

    def compute_output_spec(self, hidden, targets=None):
        shape = (*hidden.shape[:-1], self.embedding.input_dim)
        if targets is not None:
            shape = targets.shape
        return keras.KerasTensor(shape, dtype="float32")

    def get_config(self):
        return {
            **super().get_config(),
            "embedding": keras.saving.serialize_keras_object(self.embedding),
            "tie_embeddings": self.tie_embeddings,
            "tie_projections": list(self.tie_projections),
            "tail_rows": self.tail_rows,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "projection_initializer": keras.initializers.serialize(
                self.projection_initializer
            ),
        }

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})


def _one_a_cluster(tie_projections, num_clusters):
    if tie_projections == "all_but_first":
        return (False,) + (True,) * (num_clusters - 1)
    if isinstance(tie_projections, bool):
        return (tie_projections,) * num_clusters
    if isinstance(tie_projections, str) or len(tie_projections) != num_clusters:
        raise ValueError(
            "`tie_projections` must be a boolean, 'all_but_first' or one "
            f"boolean a cluster, {num_clusters} of them. Received: "
            f"tie_projections={tie_projections}"
        )
    return tuple(bool(tie) for tie in tie_projections)


def _logits(hidden, kernel, bias, projection=None):
    """`(..., D)` to `(..., n)`, for a table `(n, e)`."""
    return _products(_project(hidden, projection), kernel) + bias


def _products(hidden, kernel):
    if kernel.shape[1] == 0:  # words that only a bias tells apart
        shape = [*tf.unstack(tf.shape(hidden)[:-1]), kernel.shape[0]]
        return tf.zeros(shape, hidden.dtype)
    return tf.matmul(hidden, kernel, transpose_b=True)


def _project(hidden, projection=None):
    if projection is None:
        return hidden
    return tf.matmul(hidden, projection, transpose_b=True)


def _cross_entropy_of_few_rows(targets, hidden, kernel, bias, *projection):
    """Negative log-likelihood of rows, by a large table `(n, e)`.

    The table times the rows and not the rows times the table: XLA's product on
    a CPU then takes 0.8 (48 rows) to 0.5 (16 rows) of the time.
    """
    if kernel.shape[1] == 0:
        return _nll_of_parts([_products(hidden, kernel)], [bias], [targets])
    hidden = _project(hidden, *projection)
    products = tf.matmul(kernel, hidden, transpose_b=True)  # [n, K]
    return _nll_of_parts([products], [bias], [targets], axis=0)


def _nll_of_parts(parts, biases, targets, axis=-1):
    """Negative log-likelihood where the classes lie in several tensors.

    The gradient is written out: forward and backward are one pass each over
    what may be hundreds of thousands of classes.

    Args:
        parts: Logits without biases, `(K, n_i)`; `(n_i, K)` if `axis` is 0.
        biases: For each part float32 `(n_i,)`.
        targets: For each part int32 `(K,)`; -1 where the class is in another.
        axis: Integer, that of the classes.

    Returns:
        Float32 tensor `(K,)`.
    """

    @tf.custom_gradient
    def nll(*tensors):
        value, *norm = _softmax_nll(tensors, targets, axis)

        def gradient(upstream):
            return _softmax_nll_gradient(tensors, targets, axis, norm, upstream)

        return value, gradient

    return nll(*parts, *biases)


def _logits_of_parts(tensors, axis):
    half = len(tensors) // 2
    return [
        part + tf.expand_dims(bias, -1 - axis)  # the other axis
        for part, bias in zip(tensors[:half], tensors[half:], strict=True)
    ]


def _is_target(ids, logits, axis):
    return tf.one_hot(
        ids, logits.shape[axis], on_value=True, off_value=False, axis=axis
    )


@fused
def _softmax_nll(tensors, targets, axis):
    """The result, the highest logit and the logarithm of the sum, `(K,)`."""
    parts = _logits_of_parts(tensors, axis)
    highest = functools.reduce(
        tf.maximum, [tf.reduce_max(logits, axis) for logits in parts]
    )
    total, target = 0.0, 0.0
    for logits, ids in zip(parts, targets, strict=True):
        # Taken off first, or large logits would cost the digits of the result.
        logits = logits - tf.expand_dims(highest, axis)
        total += tf.reduce_sum(tf.exp(logits), axis)
        is_target = _is_target(ids, logits, axis)
        target += tf.reduce_sum(tf.where(is_target, logits, 0.0), axis)
    log_total = tf.math.log(total)
    return log_total - target, highest, log_total


@fused
def _softmax_nll_gradient(tensors, targets, axis, norm, upstream):
    """Gradients of the parts, then of the biases."""
    highest, log_total, upstream = (
        tf.expand_dims(x, axis) for x in (*norm, upstream)
    )
    gradients = []
    for logits, ids in zip(
        _logits_of_parts(tensors, axis), targets, strict=True
    ):
        probabilities = tf.exp(logits - highest - log_total)
        is_target = _is_target(ids, logits, axis)
        gradients.append(
            upstream * (probabilities - tf.cast(is_target, tf.float32))
        )
    return *gradients, *(tf.reduce_sum(part, -1 - axis) for part in gradients)


def _nll_of_some_rows(
    hidden, targets, parameters, order, start, stop, rows_of_a_pass
):
    """Negative log-likelihood of rows `order[start:stop]`, 0 for the others.

    In passes of a static number of rows, as many as there are to do. The
    gradient makes the same passes again, so that neither logits nor a sum of
    gradients is kept a pass: memory is that of one, and the only dense
    gradient of the table is the one that is handed back.

    Args:
        hidden: Float32 tensor `(R, D)`.
        targets: int32 tensor `(R,)`, ids inside the cluster.
        parameters: Arguments of `_logits` after the first.
        order: int32 permutation of the rows `(R,)`.
        start, stop: int32 scalars.
        rows_of_a_pass: Integer `K`.

    Returns:
        Float32 tensor `(R,)`.
    """
    num_rows = tf.shape(order)[0]
    last_target = parameters[0].shape[0] - 1

    def rows_of(position):
        """Rows of the pass that begins at `position`; which are real."""
        positions = position + tf.range(rows_of_a_pass)
        # Past the end the last row stands in; what comes of it is left out.
        rows = tf.gather(order, tf.minimum(positions, num_rows - 1))
        return rows, positions < stop

    def nll_of(rows, hidden_rows, *parameters):
        inside = tf.clip_by_value(tf.gather(targets, rows), 0, last_target)
        return _cross_entropy_of_few_rows(inside, hidden_rows, *parameters)

    def passes(body, *values):
        """Sums up what `body` returns, over all passes."""

        def one_pass(position, *sums):
            return position + rows_of_a_pass, *body(position, *sums)

        _, *sums = tf.while_loop(
            lambda position, *sums: position < stop, one_pass, (start, *values)
        )
        return sums

    @tf.custom_gradient
    def nll_and_gradient(hidden, *parameters):
        def forward(position, nll):
            rows, real = rows_of(position)
            part = nll_of(rows, tf.gather(hidden, rows), *parameters)
            return [_add_rows(nll, rows, tf.where(real, part, 0.0))]

        def backward(upstream):
            def gradients(position, hidden_sum, *sums):
                rows, real = rows_of(position)
                hidden_rows = tf.gather(hidden, rows)
                with tf.GradientTape() as tape:
                    tape.watch((hidden_rows, parameters))
                    part = nll_of(rows, hidden_rows, *parameters)
                of_hidden, *of_parameters = tape.gradient(
                    part,
                    [hidden_rows, *parameters],
                    tf.where(real, tf.gather(upstream, rows), 0.0),
                    unconnected_gradients="zero",
                )
                return [
                    _add_rows(hidden_sum, rows, of_hidden),
                    *(a + b for a, b in zip(sums, of_parameters, strict=True)),
                ]

            return passes(
                gradients,
                tf.zeros_like(hidden),
                *(tf.zeros_like(parameter) for parameter in parameters),
            )

        (nll,) = passes(forward, tf.zeros_like(hidden[:, 0]))
        return nll, backward

    return nll_and_gradient(hidden, *parameters)


def _add_rows(total, rows, values):
    return tf.tensor_scatter_nd_add(total, rows[:, None], values)
