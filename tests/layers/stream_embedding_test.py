"""The embedding of several token streams."""

import numpy as np
import pytest
import tensorflow as tf
from layer_checks import check_layer

from txl_keras.layers import StreamEmbedding
from txl_keras.weights import weights_by_name

SIZES, DIMS, D = (3, 7, 5), (2, 9, 8), 8
IDS = np.random.default_rng(0).integers(SIZES, size=(2, 4, 3))


def test_keras_layer(tmp_path):
    layer = StreamEmbedding(SIZES, D, DIMS)
    check_layer(
        StreamEmbedding,
        {
            "vocabulary_sizes": list(SIZES),
            "output_dim": D,
            "embedding_dims": list(DIMS),
        },
        {"token_ids": IDS.astype("int32")},
        num_weights=5,  # the last table has the size D and no projection
        folder=tmp_path,
        batch_outputs=False,
    )
    assert layer.compute_output_shape((2, 4, 3)) == (2, 4, D)


def test_it_is_the_projection_of_concatenated_embeddings():
    layer = StreamEmbedding(SIZES, D, DIMS)
    found = layer(IDS)
    weights = weights_by_name(layer)
    tables = [weights[f"stream_{i}/embeddings_0"].numpy() for i in range(3)]
    rows = [table[IDS[..., i]] for i, table in enumerate(tables)]
    kernel = np.concatenate(
        [
            weights["stream_0/projection_0"],
            weights["stream_1/projection_0"],
            np.eye(D),
        ]
    )
    expected = np.concatenate(rows, axis=-1) @ kernel * D**0.5
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("stream", range(3))
def test_every_stream_has_its_vocabulary(stream):
    layer = StreamEmbedding(SIZES, D)
    assert layer(IDS).shape == (2, 4, D)
    wrong = IDS.copy()
    wrong[1, 2, stream] = SIZES[stream]
    with pytest.raises(ValueError, match=f"integers in .0, {SIZES[stream]}"):
        layer(wrong)
    compiled = tf.function(layer, jit_compile=True)
    unknown = np.isnan(compiled(wrong)).all(axis=-1)
    assert unknown[1, 2] and unknown.sum() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), D), "at least one"),
        ((SIZES, D, (2, 9)), "`embedding_dims` must have one size for each"),
        (((3, 0), D), "`vocabulary_sizes` must be an integer"),
        ((5, D), "`vocabulary_sizes` must be a list"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        StreamEmbedding(*arguments)
    with pytest.raises(ValueError, match="`token_ids` must have the shape"):
        StreamEmbedding(SIZES, D)(IDS[..., :2])
