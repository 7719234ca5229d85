"""Embeddings whose size falls with the rank of the word.

Letters: `B` batch, `T` segment, `V` vocabulary, `D` hidden size, `C` clusters.
"""

import keras
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_token_ids


@keras.saving.register_keras_serializable(package="txl_keras")
class AdaptiveEmbedding(keras.layers.Layer):
    """Embedding in clusters of the vocabulary, frequent words first.

    The ids are cut at `cutoffs` into clusters. Cluster `i` has a table of its
    own, of size `embedding_dim / div_val ** i` rounded down, and a projection
    to `output_dim`. Without cutoffs it is an ordinary embedding. As in the
    original a size may come out as 0: the words of that cluster are zeros.

    With `div_val=1` the clusters share one projection, which is there only
    where `embedding_dim` is not `output_dim`.

    Args:
        input_dim: Integer `V`, ids are in `[0, V)`.
        output_dim: Integer `D`.
        cutoffs: Increasing integers between 0 and `V`, where clusters begin.
        embedding_dim: Integer, size of the first table; by default `D`.
        div_val: Integer, by how much a cluster's size falls short of the one
            before.
        project_same_dim: Boolean. With `div_val > 1`: tables of size `D` get
            a projection too.
        embeddings_initializer, projection_initializer: Initializers.

    Call arguments:
        token_ids: Integer tensor of any shape, such as `(B, T)`.

    Returns:
        Tensor `(..., D)`. Compiled by XLA, which cannot raise errors, an id
        outside `[0, V)` gives NaN.

    Raises:
        ValueError: If cutoffs are not increasing or outside the vocabulary,
            if ids are no integers or, called eagerly, not in `[0, V)`.
        tf.errors.InvalidArgumentError: If an id is not in `[0, V)`, in a
            `tf.function`.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import AdaptiveEmbedding

    # Tables of (100, 64), (300, 16) and (600, 4).
    embedding = AdaptiveEmbedding(1000, 64, cutoffs=(100, 400), div_val=4)
    x = embedding(np.array([[5, 150, 999]]))  # (1, 3, 64)
    ```

    Reference:
        [Baevski and Auli, 2019](https://arxiv.org/abs/1809.10853), section 3.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        cutoffs=(),
        embedding_dim=None,
        div_val=1,
        project_same_dim=True,
        embeddings_initializer="uniform",
        projection_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.input_dim = check_integer("input_dim", input_dim, 1)
        self.output_dim = check_integer("output_dim", output_dim, 1)
        self.embedding_dim = output_dim
        if embedding_dim is not None:
            self.embedding_dim = check_integer(
                "embedding_dim", embedding_dim, 1
            )
        self.div_val = check_integer("div_val", div_val, 1)
        self.cutoffs = _checked_cutoffs(cutoffs, input_dim)
        self.project_same_dim = project_same_dim
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer
        )
        self.projection_initializer = keras.initializers.get(
            projection_initializer
        )
        # Ids of cluster i: from its bound up to the next.
        self.bounds = (0, *self.cutoffs, input_dim)
        self.num_clusters = len(self.cutoffs) + 1
        self.dims = tuple(
            self.embedding_dim // div_val**i for i in range(self.num_clusters)
        )

    def build(self, token_ids_shape=None):
        self.embeddings = [
            self._weight(
                f"embeddings_{i}",
                (self.cluster_size(i), self.dims[i]),
                self.embeddings_initializer,
            )
            for i in range(self.num_clusters)
        ]
        num_projections = 1 if self.div_val == 1 else self.num_clusters
        self.projections = [
            self._weight(
                f"projection_{i}",
                (self.dims[i], self.output_dim),
                self.projection_initializer,
            )
            if self.needs_projection(i)
            else None
            for i in range(num_projections)
        ]
        self.built = True

    def _weight(self, name, shape, initializer):
        # Gathered first, cast after: a whole table would be cast otherwise.
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer.clone(),
            autocast=False,
        )

    def cluster_size(self, cluster):
        """Number of ids in a cluster."""
        return self.bounds[cluster + 1] - self.bounds[cluster]

    def needs_projection(self, cluster):
        """Whether there is a matrix between a cluster's table and `D`."""
        if self.div_val > 1 and self.project_same_dim:
            return True
        return self.dims[cluster] != self.output_dim

    def projection(self, cluster):
        """The projection `(size of the table, D)` of a cluster, or `None`."""
        return self.projections[0 if self.div_val == 1 else cluster]

    def call(self, token_ids):
        token_ids = tf.convert_to_tensor(
            check_token_ids("token_ids", token_ids, self.input_dim)
        )
        if token_ids.dtype not in (tf.int32, tf.int64):
            token_ids = tf.cast(token_ids, tf.int32)
        rows = [self._rows(token_ids, i) for i in range(self.num_clusters)]
        if self.div_val == 1:
            rows = [tf.add_n(rows)]
        x = tf.add_n(
            [
                self._project(part, projection)
                for part, projection in zip(rows, self.projections, strict=True)
            ]
        )
        known = (token_ids >= 0) & (token_ids < self.input_dim)
        return tf.where(known[..., None], x, tf.constant(float("nan"), x.dtype))

    def _rows(self, token_ids, cluster):
        """Rows of the table where an id is in the cluster, zeros elsewhere.

        Every id is looked up in every table, so that shapes are static; for
        the small tables of the tails that costs little.
        """
        ids = token_ids - tf.cast(self.bounds[cluster], token_ids.dtype)
        inside = (ids >= 0) & (ids < self.cluster_size(cluster))
        table = tf.convert_to_tensor(self.embeddings[cluster])
        rows = tf.gather(table, tf.where(inside, ids, tf.zeros_like(ids)))
        rows = tf.cast(rows, self.compute_dtype)
        return tf.where(inside[..., None], rows, tf.zeros((), rows.dtype))

    def _project(self, rows, projection):
        if projection is None:
            return rows
        # One product of all tokens. The same as an einsum with `...` is one a
        # row, and in float16 wrong on CPUs that have AVX-512 FP16 (TF 2.21).
        return tf.tensordot(rows, tf.cast(projection, rows.dtype), axes=1)

    def compute_output_shape(self, token_ids_shape):
        return (*token_ids_shape, self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "cutoffs": list(self.cutoffs),
            "embedding_dim": self.embedding_dim,
            "div_val": self.div_val,
            "project_same_dim": self.project_same_dim,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "projection_initializer": keras.initializers.serialize(
                self.projection_initializer
            ),
        }


def _checked_cutoffs(cutoffs, vocabulary_size):
    if not hasattr(cutoffs, "__iter__"):
        raise ValueError(
            "`cutoffs` must be a sequence of integers. "
            f"Received: cutoffs={cutoffs!r}"
        )
    cutoffs = tuple(check_integer("cutoffs", cutoff, 1) for cutoff in cutoffs)
    bounds = (0, *cutoffs, vocabulary_size)
    if any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
        raise ValueError(
            "`cutoffs` must be increasing and between 0 and the size of the "
            f"vocabulary, {vocabulary_size}. Received: cutoffs={cutoffs}"
        )
    return cutoffs
