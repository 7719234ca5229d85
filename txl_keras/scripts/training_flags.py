"""Flags for training, and functions that build what they describe."""

from absl import flags

from txl_keras.data import Segments
from txl_keras.data.segments import ORDERS
from txl_keras.scripts import trained_model
from txl_keras.scripts.data_flags import CORPUS_FLAGS
from txl_keras.scripts.data_flags import TOKENIZER_FLAGS
from txl_keras.scripts.help_topics import script_flags
from txl_keras.training import optimizers
from txl_keras.training.optimizers import OPTIMIZERS
from txl_keras.training.run_plan import RunPlan
from txl_keras.training.schedules import SCHEDULES
from txl_keras.training.schedules import build_schedule
from txl_keras.training.strategy import check_alike

FLAGS = flags.FLAGS

# Flags that affect the result of a run. They are recorded in its config.json
# and may not change when the run resumes.
RESULT_FLAGS = (
    *TOKENIZER_FLAGS, "initialize_from", "precision", "seed", "batch_size",
    "segment_length", "order", "reset_documents", "varlen", "half_loss",
    "intermediate_losses", "max_steps", "minutes", "optimizer", "weight_decay",
    "momentum", "beta_2", "clip_norm", "schedule", "learning_rate",
    "min_learning_rate", "warmup_steps", "max_eval_tokens",
)  # fmt: skip
# Flags that may differ from worker to worker.
_OWN_FLAGS = (
    *CORPUS_FLAGS, "vocabulary", "workdir", "tpu", "num_cpu_devices",
)  # fmt: skip
# Default learning rate for weights that were not trained here.
_FINE_TUNING_RATE = 5e-5


def define_training_flags():
    """Defines the flags for training a language model."""
    define_common_flags()
    trained_model.define_origin_flag()
    flags.DEFINE_float(
        "minutes", None,
        "Minutes that the command takes, about: times some steps at the start "
        "and chooses max_steps accordingly, and for a short text fewer; "
        "dropout, precision and max_eval_tokens, too, unless they are given. "
        "Changes max_steps while it trains if the speed changes. More minutes "
        "than before train a finished run for longer. Default: max_steps "
        "counts.", lower_bound=0.01, upper_bound=1e6,
    )  # fmt: skip
    flags.DEFINE_bool(
        "varlen", False,
        "Vary the length of training segments at random around segment_length.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "half_loss", False,
        "Compute the training loss on the second half of each segment only. "
        "With --order=roll all tokens become targets in some epoch.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "intermediate_losses", False,
        "Let the blocks below the last one predict, too, during parts of the "
        "first half of the steps, as in Al-Rfou et al.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "attention_kernel", False,
        "Compute attention in training with a Pallas kernel, which uses less "
        "memory and bandwidth. For TPU v4 and later (v2 and v3 in float32 "
        "only); needs jax.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_sample_tokens", 500,
        "Most tokens to write into sample.txt at the end of the run. A sample "
        "of up to 100 is shown after a validation score, along with "
        "WORKDIR/surprise.html, if these have taken less than 2 % of the time "
        "so far. 0 for neither.", lower_bound=0,
    )  # fmt: skip


def define_precision_flag():
    """Defines `--precision`, with the same values in every script."""
    flags.DEFINE_enum(
        "precision", "float32", ["float32", "bfloat16", "float16"],
        "Dtype of activations and matmuls. Weights, softmax, layer norms and "
        "loss are always float32.",
    )  # fmt: skip


def define_common_flags():
    """Defines the flags that training any model has."""
    flags.DEFINE_string(
        "tpu", None,
        "Name of the TPU to train on; `local` or empty for the TPU of this "
        "machine. Default: no TPU.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "num_cpu_devices", None,
        "Number of logical devices, each with a replica, to split the CPU "
        "into. Default: one.", lower_bound=1,
    )  # fmt: skip
    define_precision_flag()
    flags.DEFINE_integer(
        "seed", 0,
        "Seed of the initial weights, of dropout and of the order of the data.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "batch_size", 8, "Rows per training step over all replicas.",
        lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "segment_length", 64, "Tokens per row and training step.",
        lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_enum(
        "order", "sequential", ORDERS,
        "Order of the text in each epoch. sequential: always the same; roll: "
        "every row starts at another token; shuffle: documents are shuffled.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "reset_documents", False,
        "Clear the memory at the start of each document.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_steps", 5000,
        "Number of training steps. More than before train a finished run for "
        "longer.", lower_bound=1, upper_bound=10**9,
    )  # fmt: skip
    flags.DEFINE_enum(
        "optimizer", "adam", OPTIMIZERS,
        "Optimizer; lamb is for large batches, muon orthogonalizes the updates "
        "of kernels.",
    )  # fmt: skip
    flags.DEFINE_float(
        "weight_decay", 0.0, "Weight decay of adamw, lamb and muon.",
        lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_float(
        "momentum", 0.0,
        "Momentum of sgd and muon; 0 means 0.95 for muon.", lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_float(
        "beta_2", None,
        "Decay of the second moment of adam, adamw and lamb. Default: 0.999.",
    )  # fmt: skip
    flags.DEFINE_float(
        "clip_norm", 0.25,
        "Global norm to which gradients are clipped; 0 for no clipping.",
    )  # fmt: skip
    flags.DEFINE_enum(
        "schedule", "cosine", SCHEDULES,
        "Decay of the learning rate after its warm-up.",
    )  # fmt: skip
    flags.DEFINE_float(
        "learning_rate", 1.5e-3,
        "Peak learning rate. Models of 40 million weights and more need about "
        "2.5e-4. Default with --initialize_from: half of that run's, or "
        f"{_FINE_TUNING_RATE} if it was not trained here.", lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_float(
        "min_learning_rate", 0.0, "Learning rate after the last step.",
        lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_integer(
        "warmup_steps", None,
        "Steps of linear warm-up of the learning rate. Default: a tenth of "
        "max_steps.", lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_eval_tokens", None,
        "Score only this many tokens from the start of valid and test. "
        "Default: all.", lower_bound=2,
    )  # fmt: skip
    flags.DEFINE_integer(
        "accumulate_steps", 1,
        "Parts into which each replica divides its rows to accumulate their "
        "gradients: the same step in less memory.", lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "eval_batch_size", 16, "Rows per batch in evaluation.", lower_bound=1
    )
    flags.DEFINE_integer(
        "eval_every", 1000, "Training steps between evaluations on valid.",
        lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "checkpoint_every", 1000, "Training steps between checkpoints.",
        lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_to_keep", 2,
        "Number of latest checkpoints to keep; `txl average` averages them.",
        lower_bound=2,
    )  # fmt: skip
    flags.DEFINE_string(
        "profile_steps", None,
        "FIRST,LAST: profile the steps after FIRST up to LAST, for "
        "TensorBoard. Default: none.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "steps_per_execution", 20,
        "Most training steps that run in one call from the host.",
        lower_bound=1,
    )  # fmt: skip


def result_settings():
    """Returns the values of `RESULT_FLAGS` as a dictionary."""
    return {**_values(RESULT_FLAGS), "warmup_steps": _warmup_steps()}


def _warmup_steps():
    if FLAGS.warmup_steps is None:
        return FLAGS.max_steps // 10
    return FLAGS.warmup_steps


def set_fine_tuning_rate(config):
    """Sets the default `--learning_rate` to half of the original run's."""
    # Trained weights need smaller steps; how small depends on the model, as the
    # original rate did.
    rate = config["flags"].get("learning_rate")
    FLAGS.set_default("learning_rate", rate / 2 if rate else _FINE_TUNING_RATE)


def _values(names):
    """Returns the values of the flags that this script defines."""
    return {name: FLAGS[name].value for name in names if name in FLAGS}


def check_inherited_flags():
    """Checks that no flag sets what `--initialize_from` determines."""
    for name in ("preset", "backbone", "vocabulary", *TOKENIZER_FLAGS):
        if name in FLAGS and FLAGS[name].present:
            raise ValueError(
                f"`{name}` cannot be given with `initialize_from`, whose run "
                f"determines it. Received: {name}={FLAGS[name].value}, "
                f"initialize_from={FLAGS.initialize_from}"
            )


def check_workers(strategy):
    """Checks that all workers have the same flags."""
    names = [flag.name for flag in script_flags()]
    check_alike(strategy, _values(x for x in names if x not in _OWN_FLAGS))


def dtype_policy():
    """Returns the Keras dtype policy of `--precision`."""
    if FLAGS.precision == "float32":
        return "float32"
    return f"mixed_{FLAGS.precision}"


def build_plan():
    """Builds the learning-rate schedule of the flags, over their steps."""
    schedule = build_schedule(
        FLAGS.schedule,
        FLAGS.learning_rate,
        FLAGS.max_steps,
        _warmup_steps(),
        FLAGS.min_learning_rate,
    )
    return RunPlan(schedule, FLAGS.max_steps)


def build_optimizer(plan):
    """Builds the optimizer of the flags, whose learning rate is a `RunPlan`."""
    return optimizers.build_optimizer(
        FLAGS.optimizer,
        plan,
        weight_decay=FLAGS.weight_decay,
        momentum=FLAGS.momentum,
        beta_2=FLAGS.beta_2,
    )


def intermediate_loss_steps():
    """Returns the steps of `--intermediate_losses`: half of all or none."""
    return FLAGS.max_steps // 2 if FLAGS.intermediate_losses else 0


def training_segments(split, segment_length=None):
    """Makes the `Segments` of a `PreparedSplit` to train on."""
    return Segments(
        split.tokens,
        FLAGS.batch_size,
        segment_length or FLAGS.segment_length,
        drop_remainder=True,
        documents=split.documents,
        order=FLAGS.order,
        reset_documents=FLAGS.reset_documents,
        seed=FLAGS.seed,
        **_values(("varlen", "half_loss")),
    )


def held_out_segments(tokens, documents, segment_length=None):
    """Makes the `Segments` to score from the result of `PreparedSplit.head`."""
    return Segments(
        tokens,
        FLAGS.eval_batch_size,
        segment_length or FLAGS.segment_length,
        drop_remainder=False,
        documents=documents,
        reset_documents=FLAGS.reset_documents,
    )
