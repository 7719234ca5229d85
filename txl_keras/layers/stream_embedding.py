"""An embedding of several token streams.

Letters: `B` batch, `T` segment, `D` hidden size, `F` streams.
"""

import keras
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_shape
from txl_keras.checks import shown
from txl_keras.layers.config import config_of
from txl_keras.layers.softmax.adaptive_embedding import AdaptiveEmbedding


@keras.saving.register_keras_serializable(package="txl_keras")
class StreamEmbedding(keras.layers.Layer):
    """Embeds steps of several token ids each.

    Every stream has its own table of `V_f` rows, and a projection unless its
    size `e_f` is D. The projected embeddings are summed:

        x = sqrt(D) sum_f E_f[id_f] W_f

    This is also the projection of the concatenated embeddings, as in Compound
    Word Transformer, since `[E_1 .. E_F] W` is the sum of the products of the
    parts. The factor is that of the token embedding of backbones.

    Args:
        vocabulary_sizes: Sequence of F integers `V_f`.
        output_dim: Integer `D`.
        embedding_dims: Optional sequence of F integers `e_f`. By default all
            are D, and nothing is projected.

    Call arguments:
        token_ids: Integer tensor of shape `(B, T, F)`, ids of stream f in
            `[0, V_f)`.

    Returns:
        Tensor of shape `(B, T, D)`. When compiled by XLA, which cannot raise
        errors, ids that are out of range give NaN.

    Raises:
        ValueError: If a size is not positive, the numbers of streams differ,
            or, in an eager call, an id is out of range.
        tf.errors.InvalidArgumentError: If an id is out of range, in a
            `tf.function` without XLA.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import StreamEmbedding

    embedding = StreamEmbedding((5, 90), 32, embedding_dims=(8, 64))
    x = embedding(np.array([[[0, 60], [4, 89]]]))  # (1, 2, 32)
    ```

    Reference:
        [Hsiao et al., 2021](https://arxiv.org/abs/2101.02402).
    """

    def __init__(
        self, vocabulary_sizes, output_dim, embedding_dims=None, **kwargs
    ):
        super().__init__(**kwargs)
        check_list("vocabulary_sizes", vocabulary_sizes)
        if embedding_dims is None:
            embedding_dims = [output_dim] * len(vocabulary_sizes)
        check_list("embedding_dims", embedding_dims)
        if not 0 < len(vocabulary_sizes) == len(embedding_dims):
            raise ValueError(
                "`embedding_dims` must have one size for each of the "
                "`vocabulary_sizes`, of which there is at least one. Received: "
                f"vocabulary_sizes={shown(vocabulary_sizes)}, "
                f"embedding_dims={shown(embedding_dims)}"
            )
        self.vocabulary_sizes = [
            check_integer("vocabulary_sizes", size, 1)
            for size in vocabulary_sizes
        ]
        self.embedding_dims = [
            check_integer("embedding_dims", dim, 1) for dim in embedding_dims
        ]
        self.output_dim = check_integer("output_dim", output_dim, 1)
        self._embeddings = [
            AdaptiveEmbedding(
                size,
                output_dim,
                embedding_dim=dim,
                dtype=self.dtype_policy,
                name=f"stream_{i}",
            )
            for i, (size, dim) in enumerate(
                zip(self.vocabulary_sizes, self.embedding_dims, strict=True)
            )
        ]

    def build(self, token_ids_shape=None):
        for embedding in self._embeddings:
            embedding.build()

    def call(self, token_ids):
        expected = (None, None, len(self._embeddings))
        check_shape("token_ids", token_ids, expected)
        parts = [
            embedding(token_ids[..., i])
            for i, embedding in enumerate(self._embeddings)
        ]
        return tf.add_n(parts) * self.output_dim**0.5

    def compute_output_shape(self, token_ids_shape):
        return (*token_ids_shape[:-1], self.output_dim)

    def get_config(self):
        return super().get_config() | config_of(StreamEmbedding, self)
