"""Flags of XLNet and of what it is to predict, and what they make."""

from absl import flags

from txl_keras.data import PermutedSegments
from txl_keras.data import Segments
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM

FLAGS = flags.FLAGS

_MODEL_FLAGS = (
    "num_layers", "num_heads", "head_dim", "hidden_dim", "intermediate_dim",
    "memory_length", "clamp_length", "dropout", "attention_dropout",
    "layer_norm_epsilon", "initializer_stddev",
)  # fmt: skip
_OBJECTIVE_FLAGS = (
    "context_factor", "max_span", "not_predicted", "reuse_half",
)  # fmt: skip


def define_xlnet_flags():
    """Defines the flags of the model and of its objective."""
    integer, real = flags.DEFINE_integer, flags.DEFINE_float
    integer("num_layers", 4, "Blocks.")
    integer("num_heads", 4, "Attention heads of a block.")
    integer("head_dim", None, "Size of a head. Default: hidden_dim / num_heads")
    integer("hidden_dim", 128, "Hidden size.")
    integer("intermediate_dim", 512, "Inner size of the feed-forward layers.")
    integer(
        "memory_length", 128, "Tokens of memory; 0 for none.", lower_bound=0
    )
    integer("clamp_length", None, "Distances beyond it count as it.")
    real("dropout", 0.1, "Dropout rate.")
    real("attention_dropout", 0.1, "Dropout rate of attention.")
    real("layer_norm_epsilon", 1e-12, "Epsilon of layer normalization.")
    real("initializer_stddev", 0.02, "Standard deviation of initial weights.")
    integer(
        "context_factor", 6, "One of so many tokens is predicted.",
        lower_bound=1,
    )  # fmt: skip
    integer("max_span", 5, "Most tokens in a row to predict.", lower_bound=1)
    flags.DEFINE_list(
        "not_predicted", [], "Ids that are never predicted, such as of [SEP]."
    )
    flags.DEFINE_bool(
        "reuse_half", False,
        "Read on by half a segment, and remember that half alone.",
    )  # fmt: skip


def names():
    """Tuple of the flags that `define_xlnet_flags` defines."""
    return (*_MODEL_FLAGS, *_OBJECTIVE_FLAGS)


def objective_settings():
    """Dictionary of the values of the flags that no model knows."""
    return {name: FLAGS[name].value for name in _OBJECTIVE_FLAGS}


def build_model(vocabulary_size, dtype):
    """Builds the model that the flags name, with fresh weights.

    Args:
        vocabulary_size: Integer.
        dtype: A Keras dtype policy.

    Returns:
        `XLNetPermutationLM`.

    Raises:
        ValueError: If a flag is not what the model expects.
    """
    sizes = {name: FLAGS[name].value for name in _MODEL_FLAGS}
    reuse_length = _stride() if FLAGS.reuse_half else None
    return XLNetPermutationLM(
        XLNetBackbone(
            vocabulary_size, reuse_length=reuse_length, dtype=dtype, **sizes
        )
    )


def training_segments(split, vocabulary_size):
    """`PermutedSegments` of a `PreparedSplit`, to train on."""
    segments = Segments(
        split.tokens,
        FLAGS.batch_size,
        _stride(),
        drop_remainder=True,
        documents=split.documents,
        order=FLAGS.order,
        reset_documents=FLAGS.reset_documents,
        seed=FLAGS.seed,
    )
    return _permuted(segments, vocabulary_size, FLAGS.seed)


def held_out_segments(tokens, documents, vocabulary_size):
    """`PermutedSegments` to score, the same targets whatever the flags."""
    segments = Segments(
        tokens,
        FLAGS.eval_batch_size,
        _stride(),
        drop_remainder=False,
        documents=documents,
        reset_documents=FLAGS.reset_documents,
    )
    return _permuted(segments, vocabulary_size, seed=0)


def _stride():
    """Tokens that a step reads on by."""
    length = FLAGS.segment_length
    if not FLAGS.reuse_half:
        return length
    if length % 2:
        raise ValueError(
            "`segment_length` must be even with `reuse_half`. Received: "
            f"segment_length={length}"
        )
    return length // 2


def _permuted(segments, vocabulary_size, seed):
    return PermutedSegments(
        segments,
        context_factor=FLAGS.context_factor,
        max_span=FLAGS.max_span,
        not_predicted=_not_predicted(vocabulary_size),
        with_next=FLAGS.reuse_half,
        seed=seed,
    )


def _not_predicted(vocabulary_size):
    ids = FLAGS.not_predicted
    if not all(i.isdecimal() and int(i) < vocabulary_size for i in ids):
        raise ValueError(
            "`not_predicted` must be ids of the vocabulary, below "
            f"{vocabulary_size}, with commas between them. Received: "
            f"not_predicted={','.join(ids)}"
        )
    return [int(i) for i in ids]
