"""Flags of training, and what they make."""

from absl import flags

from txl_keras.data import Segments
from txl_keras.data.segments import ORDERS
from txl_keras.scripts import model_flags
from txl_keras.scripts import xlnet_flags
from txl_keras.scripts.data_flags import TOKENIZER_FLAGS
from txl_keras.training import optimizers
from txl_keras.training.optimizers import OPTIMIZERS
from txl_keras.training.schedules import SCHEDULES
from txl_keras.training.schedules import build_schedule
from txl_keras.training.strategy import check_alike

FLAGS = flags.FLAGS

# What makes the results of a run, and may not change when it goes on.
RESULT_FLAGS = (
    *TOKENIZER_FLAGS, "initialize_from", "precision", "seed", "batch_size",
    "segment_length", "order", "reset_documents", "varlen", "half_loss",
    "intermediate_losses", "max_steps", "optimizer", "weight_decay",
    "momentum", "beta_1", "beta_2", "epsilon", "clip_norm", "schedule",
    "learning_rate", "min_learning_rate", "warmup_steps", "subtract_warmup",
    "max_eval_tokens",
)  # fmt: skip
# The others.
HABIT_FLAGS = (
    "accumulate_steps", "eval_batch_size", "eval_every", "checkpoint_every",
    "max_to_keep", "profile_steps", "steps_per_execution", "max_sample_tokens",
    "attention_kernel",
)  # fmt: skip
# Of weights whose own learning rate nobody knows.
_FINE_TUNING_RATE = 5e-5


def define_training_flags():
    """Defines the flags of what is trained, and of how it is watched."""
    define_common_flags()
    _define_language_model_flags()


def define_common_flags():
    """Defines those of them that training any model has."""
    _define_result_flags()
    _define_habit_flags()


def _define_language_model_flags():
    flags.DEFINE_string(
        "initialize_from", None,
        "Workdir whose best weights, model and tokenizer to begin with.",
    )  # fmt: skip
    flags.DEFINE_bool("varlen", False, "Vary the length of segments.")
    flags.DEFINE_bool(
        "half_loss", False,
        "Train on the later half of each segment; order=roll shifts it.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "intermediate_losses", False,
        "Blocks below the last predict too, in the first half of the steps.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "attention_kernel", False,
        "On a TPU, v4 or later, attention by a kernel of its own in training, "
        "which needs jax: fewer bytes, less memory.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_sample_tokens", 500,
        "Most tokens to write into sample.txt at the end of the run.",
        lower_bound=0,
    )  # fmt: skip


def define_precision_flag():
    """Defines `--precision`, with the same values in every script."""
    flags.DEFINE_enum(
        "precision", "float32", ["float32", "bfloat16", "float16"],
        "Dtype of activations and matmuls. Weights, softmax, layer norms and "
        "loss are always float32.",
    )  # fmt: skip


def _define_result_flags():
    define_precision_flag()
    flags.DEFINE_integer("seed", 0, "Of initial weights and dropout.")
    flags.DEFINE_integer(
        "batch_size", 8, "Rows over all replicas.", lower_bound=1
    )
    flags.DEFINE_integer(
        "segment_length", 64, "Tokens of a row in a step.", lower_bound=1
    )
    flags.DEFINE_enum(
        "order", "sequential", ORDERS,
        "Of an epoch: roll begins every row elsewhere, shuffle mixes "
        "documents.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "reset_documents", False, "Forget memory where a document begins."
    )
    flags.DEFINE_integer("max_steps", 6000, "Steps of training.", lower_bound=1)
    flags.DEFINE_enum(
        "optimizer", "adam", OPTIMIZERS, "Optimizer; lamb is for large batches."
    )
    flags.DEFINE_float("weight_decay", 0.0, "Of adamw and lamb.", lower_bound=0)
    flags.DEFINE_float("momentum", 0.0, "Of sgd.", lower_bound=0)
    flags.DEFINE_float("beta_1", None, "Of adam, adamw, lamb. Default: 0.9.")
    flags.DEFINE_float("beta_2", None, "Of the same. Default: 0.999.")
    flags.DEFINE_float(
        "epsilon", None, "Of the same. Default: 1e-9; lamb 1e-6."
    )
    flags.DEFINE_float(
        "clip_norm", 0.25, "Largest global norm of the gradient; 0: any."
    )
    flags.DEFINE_enum(
        "schedule",
        "cosine",
        SCHEDULES,
        "Of the learning rate, after its warm-up.",
    )
    flags.DEFINE_float(
        "learning_rate", 1.5e-3,
        "Peak learning rate. Models of 40 million weights and more take about "
        "2.5e-4. Default with --initialize_from: half of that run's, or "
        f"{_FINE_TUNING_RATE} if it was not trained here.", lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_float(
        "min_learning_rate", 0.0, "Learning rate at the end.", lower_bound=0
    )
    flags.DEFINE_integer(
        "warmup_steps", None,
        "Steps of linear warm-up of the learning rate. Default: a tenth of "
        "max_steps.", lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_bool(
        "subtract_warmup", True,
        "Begin the cosine at the end of the warm-up, as the original "
        "TensorFlow code does. Its PyTorch code begins it at step 0.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_eval_tokens", None,
        "Score only the first tokens of valid and test. Default: all.",
        lower_bound=2,
    )  # fmt: skip


def _define_habit_flags():
    flags.DEFINE_integer(
        "accumulate_steps", 1,
        "Pieces that a replica computes its rows in, one after the other: the "
        "same step in less memory.", lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "eval_batch_size", 16, "Rows in evaluation.", lower_bound=1
    )
    flags.DEFINE_integer(
        "eval_every", 1000, "Steps between scores of valid.", lower_bound=1
    )
    flags.DEFINE_integer(
        "checkpoint_every", 1000, "Steps between checkpoints.", lower_bound=1
    )
    flags.DEFINE_integer(
        "max_to_keep", 2, "Checkpoints, for train/average.py.", lower_bound=2
    )
    flags.DEFINE_string(
        "profile_steps", None,
        "FIRST,LAST: trace the steps after FIRST, up to LAST, for TensorBoard.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "steps_per_execution",
        20,
        "Steps in one call of TensorFlow.",
        lower_bound=1,
    )


def result_settings():
    """Dictionary of the values of `RESULT_FLAGS`."""
    return {**_values(RESULT_FLAGS), "warmup_steps": _warmup_steps()}


def _warmup_steps():
    """`--warmup_steps`, or a tenth of all steps."""
    if FLAGS.warmup_steps is None:
        return FLAGS.max_steps // 10
    return FLAGS.warmup_steps


def set_fine_tuning_rate(config):
    """Makes half of a run's learning rate the default of `--learning_rate`.

    Weights that are good already need smaller steps; how small depends on the
    model, as its own rate did.

    Args:
        config: Dictionary, the configuration of the run to begin with.
    """
    rate = config["flags"].get("learning_rate")
    FLAGS.set_default("learning_rate", rate / 2 if rate else _FINE_TUNING_RATE)


def _values(names):
    """Of those flags that the script has."""
    return {name: FLAGS[name].value for name in names if name in FLAGS}


def check_brings_its_own():
    """Raises `ValueError` if a flag says what `--initialize_from` brings."""
    for name in ("preset", "backbone", "vocabulary", *TOKENIZER_FLAGS):
        if name in FLAGS and FLAGS[name].present:
            raise ValueError(
                f"`{name}` cannot be given with `initialize_from`, which "
                f"brings its own. Received: {name}={FLAGS[name].value}, "
                f"initialize_from={FLAGS.initialize_from}"
            )


def check_workers(strategy):
    """Raises ValueError if other workers have other flags."""
    of_model = (*model_flags.names(), *xlnet_flags.names())
    check_alike(strategy, _values((*RESULT_FLAGS, *HABIT_FLAGS, *of_model)))


def dtype_policy():
    """The Keras dtype policy of `--precision`."""
    if FLAGS.precision == "float32":
        return "float32"
    return f"mixed_{FLAGS.precision}"


def build_optimizer():
    """Builds the optimizer that the flags name, with its schedule.

    Returns:
        `keras.optimizers.Optimizer`.

    Raises:
        ValueError: If the flags exclude each other or are out of range.
    """
    schedule = build_schedule(
        FLAGS.schedule,
        FLAGS.learning_rate,
        FLAGS.max_steps,
        _warmup_steps(),
        FLAGS.min_learning_rate,
        FLAGS.subtract_warmup,
    )
    return optimizers.build_optimizer(
        FLAGS.optimizer,
        schedule,
        FLAGS.weight_decay,
        FLAGS.momentum,
        FLAGS.beta_1,
        FLAGS.beta_2,
        FLAGS.epsilon,
    )


def intermediate_loss_steps():
    """Steps of `--intermediate_losses`, as in Al-Rfou et al. (2018)."""
    return FLAGS.max_steps // 2 if FLAGS.intermediate_losses else 0


def training_segments(split):
    """`Segments` of a `PreparedSplit`, to train on."""
    return Segments(
        split.tokens,
        FLAGS.batch_size,
        FLAGS.segment_length,
        drop_remainder=True,
        documents=split.documents,
        order=FLAGS.order,
        reset_documents=FLAGS.reset_documents,
        varlen=FLAGS.varlen,
        half_loss=FLAGS.half_loss,
        seed=FLAGS.seed,
    )


def held_out_segments(tokens, documents):
    """`Segments` to score, of the pair that `PreparedSplit.head` returns."""
    return Segments(
        tokens,
        FLAGS.eval_batch_size,
        FLAGS.segment_length,
        drop_remainder=False,
        documents=documents,
        reset_documents=FLAGS.reset_documents,
    )
