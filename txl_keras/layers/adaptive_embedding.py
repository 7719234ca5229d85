"""Adaptive embedding, with smaller embeddings for rarer words."""

from collections.abc import Sequence

import keras
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_token_ids
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.types import Tensor


class ClusteredLayer(ConfiguredLayer):
    """Base class of layers with a table for each cluster."""

    def _weight(self, name, shape, initializer):
        # No autocast, which would cast the whole table before rows are
        # gathered.
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=keras.initializers.get(initializer).clone(),
            autocast=False,
        )

    def _tables(self, embedding, prefix, initializer):
        """Creates a table for each cluster."""
        return [
            self._weight(
                f"{prefix}_{i}", (embedding.cluster_size(i), size), initializer
            )
            for i, size in enumerate(embedding.dims)
        ]

    def _projections(self, embedding, are_used):
        """Creates the projections, `None` for clusters that have none."""
        return [
            self._weight(
                f"projection_{i}",
                (embedding.dims[i], embedding.output_dim),
                self.projection_initializer,
            )
            if is_used and embedding.needs_projection(i)
            else None
            for i, is_used in enumerate(are_used)
        ]


@keras.saving.register_keras_serializable(package="txl_keras")
class AdaptiveEmbedding(ClusteredLayer):
    """Embeds tokens, with smaller embeddings for rarer tokens.

    Ids must be sorted by frequency, the most frequent word first. They are
    split at `cutoffs` into clusters. Cluster `i` has a table of embeddings of
    size `embedding_dim / div_val ** i`, rounded down, and a projection to
    `output_dim`. As in the original code, this size may be 0: then the
    embeddings of the cluster are zeros. Without cutoffs it is an ordinary
    embedding.

    With `div_val=1` all clusters share one projection, which only exists if
    `embedding_dim` differs from `output_dim`.

    Args:
        input_dim: Integer `V`. Ids are in `[0, V)`.
        output_dim: Integer `D`.
        cutoffs: Sequence of increasing integers between 0 and `V`, the first
            ids of all clusters after the first. `(4000,)` puts the 4,000 most
            frequent words into the first cluster.
        embedding_dim: Integer, the size of the embeddings in the first
            cluster. By default `D`.
        div_val: Integer, the factor by which the size shrinks from one cluster
            to the next.
        project_same_dim: Boolean. With `div_val > 1`, whether tables whose
            size is already `D` also have a projection.
        embeddings_initializer, projection_initializer: Initializers of the
            tables and of the projections.

    Call arguments:
        token_ids: Integer tensor of any shape, such as `(B, T)`.

    Returns:
        Tensor of shape `(..., D)`. When compiled by XLA, which cannot raise
        errors, ids outside `[0, V)` give NaN.

    Raises:
        tf.errors.InvalidArgumentError: If an id is not in `[0, V)`, in a
            `tf.function` without XLA.

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
        input_dim: int,
        output_dim: int,
        cutoffs: Sequence[int] = (),
        embedding_dim: int | None = None,
        div_val: int = 1,
        project_same_dim: bool = True,
        embeddings_initializer: str | keras.Initializer = "uniform",
        projection_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.input_dim = check_integer("input_dim", input_dim, 1)
        self.output_dim = check_integer("output_dim", output_dim, 1)
        if embedding_dim is None:
            embedding_dim = output_dim
        self.embedding_dim = check_integer("embedding_dim", embedding_dim, 1)
        self.div_val = check_integer("div_val", div_val, 1)
        self.cutoffs = _checked_cutoffs(cutoffs, input_dim)
        self.project_same_dim = project_same_dim
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer
        )
        self.projection_initializer = keras.initializers.get(
            projection_initializer
        )
        # Cluster i has the ids from bounds[i] to bounds[i + 1] - 1.
        self.bounds = (0, *self.cutoffs, input_dim)
        self.num_clusters = len(self.cutoffs) + 1
        self.dims = tuple(
            self.embedding_dim // div_val**i for i in range(self.num_clusters)
        )

    def build(self, token_ids_shape=None):
        self.embeddings = self._tables(
            self, "embeddings", self.embeddings_initializer
        )
        num_projections = 1 if self.div_val == 1 else self.num_clusters
        self.projections = self._projections(self, [True] * num_projections)
        self.built = True

    def cluster_size(self, cluster: int) -> int:
        """Returns the number of ids in a cluster."""
        return self.bounds[cluster + 1] - self.bounds[cluster]

    def needs_projection(self, cluster: int) -> bool:
        """Returns whether a cluster's table is projected to size `D`."""
        if self.div_val > 1 and self.project_same_dim:
            return True
        return self.dims[cluster] != self.output_dim

    def projection(self, cluster: int) -> Tensor:
        """Returns the projection of a cluster, a variable, or `None`."""
        return self.projections[0 if self.div_val == 1 else cluster]

    def call(self, token_ids):
        token_ids, known = known_ids("token_ids", token_ids, self.input_dim)
        rows = [self._rows(token_ids, i) for i in range(self.num_clusters)]
        if self.div_val == 1:
            rows = [sum(rows)]
        x = sum(map(self._project, rows, self.projections))
        return ops.where(known[..., None], x, float("nan"))

    def _rows(self, token_ids, cluster):
        """Looks up ids in a cluster's table, with zeros for other clusters."""
        # All ids are looked up in each table, so that shapes are static. This
        # costs little for the small embeddings of the tails.
        ids = token_ids - self.bounds[cluster]
        inside = (ids >= 0) & (ids < self.cluster_size(cluster))
        ids = ops.where(inside, ids, 0)
        rows = ops.take(self.embeddings[cluster], ids, axis=0)
        rows = ops.cast(rows, self.compute_dtype)
        return ops.where(inside[..., None], rows, 0)

    def _project(self, rows, projection):
        if projection is None:
            return rows
        # One matmul for all tokens. An einsum with `...` makes one per row,
        # and is wrong in float16 on CPUs with AVX-512 FP16 (TensorFlow 2.21).
        return ops.tensordot(rows, ops.cast(projection, rows.dtype), axes=1)

    def compute_output_shape(self, token_ids_shape):
        return (*token_ids_shape, self.output_dim)


def known_ids(name, ids, vocabulary_size):
    """Returns int32 ids, unknown ones as 0, and a mask of known ids."""
    # XLA cannot raise errors. Callers return NaN for unknown ids.
    ids = ops.convert_to_tensor(check_token_ids(name, ids, vocabulary_size))
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if dtype.endswith(("int8", "int16")):  # 256 of uint8 would be 0
        ids = ops.cast(ids, "int32")
    known = (ids >= 0) & (ids < vocabulary_size)
    return ops.cast(ops.where(known, ids, 0), "int32"), known


def _checked_cutoffs(cutoffs, vocabulary_size):
    check_list("cutoffs", cutoffs)
    cutoffs = tuple(check_integer("cutoffs", cutoff, 1) for cutoff in cutoffs)
    bounds = (0, *cutoffs, vocabulary_size)
    if any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
        raise ValueError(
            "`cutoffs` must be increasing and between 0 and the size of the "
            f"vocabulary, {vocabulary_size}. Received: cutoffs={cutoffs}"
        )
    return cutoffs
