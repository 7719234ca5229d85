"""Flags for XLNet and its objective, and functions that build both."""

from absl import flags

from txl_keras.data import PermutedSegments
from txl_keras.data import Segments
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM
from txl_keras.scripts import model_flags

FLAGS = flags.FLAGS

_DEFAULTS = {
    "num_layers": 4,
    "num_heads": 4,
    "head_dim": None,  # hidden_dim / num_heads
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "memory_length": 128,
    "clamp_length": None,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
OBJECTIVE_FLAGS = (
    "context_factor", "max_span", "not_predicted", "reuse_half",
)  # fmt: skip


def define_xlnet_flags():
    """Defines the flags of the model and of its objective."""
    for name, default in _DEFAULTS.items():
        model_flags.define_argument(name, default)
    flags.DEFINE_integer(
        "context_factor", 6,
        "Predict one of this many tokens; the others are context.",
        lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_span", 5, "Most consecutive tokens to predict.", lower_bound=1
    )
    flags.DEFINE_list(
        "not_predicted", [],
        "Token ids that are never predicted, such as that of [SEP].",
    )  # fmt: skip
    flags.DEFINE_bool(
        "reuse_half", False,
        "Advance by half a segment per step, and keep only that half in "
        "memory, so that segments overlap by half.",
    )  # fmt: skip


def objective_settings():
    """Returns the values of the flags that are not in the model's config."""
    return {name: FLAGS[name].value for name in OBJECTIVE_FLAGS}


def build_model(vocabulary_size, dtype):
    """Builds the XLNet that the flags describe, with random weights."""
    reuse_length = stride() if FLAGS.reuse_half else None
    return XLNetPermutationLM(
        XLNetBackbone(
            vocabulary_size,
            reuse_length=reuse_length,
            dtype=dtype,
            **model_flags.given(),
        )
    )


def training_segments(split, vocabulary_size):
    """Makes the `PermutedSegments` of a `PreparedSplit` to train on."""
    segments = Segments(
        split.tokens,
        FLAGS.batch_size,
        stride(),
        drop_remainder=True,
        documents=split.documents,
        order=FLAGS.order,
        reset_documents=FLAGS.reset_documents,
        seed=FLAGS.seed,
    )
    return permuted(segments, vocabulary_size, FLAGS.seed)


def stride():
    """Returns the tokens by which each step advances."""
    length = FLAGS.segment_length
    if not FLAGS.reuse_half:
        return length
    if length % 2:
        raise ValueError(
            "`segment_length` must be even with `reuse_half`. Received: "
            f"segment_length={length}"
        )
    return length // 2


def permuted(segments, vocabulary_size, seed):
    """Makes `PermutedSegments`, whose targets the seed chooses."""
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
            f"`not_predicted` must be token ids below {vocabulary_size}, the "
            "vocabulary size, separated by commas. Received: "
            f"not_predicted={','.join(ids)}"
        )
    return [int(i) for i in ids]
