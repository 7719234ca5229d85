"""Flags for training, and functions that build objects from them."""

from txl_keras.data import Segments
from txl_keras.data.segments import ORDERS
from txl_keras.models.presets import TRAINED
from txl_keras.optimizers import OPTIMIZERS
from txl_keras.optimizers import build_optimizer
from txl_keras.scripts import options
from txl_keras.scripts.data_flags import Corpus
from txl_keras.scripts.options import FLAGS
from txl_keras.training.schedules import SCHEDULES
from txl_keras.training.schedules import build_schedule
from txl_keras.training.strategy import check_alike
from txl_keras.training.trainer import Trainer

# Default learning rates for weights of the package, and for those that neither
# a run nor the package holds.
_RATE_OF_TRAINED, _FINE_TUNING_RATE = 5e-4, 5e-5


class Training(
    options.Options,
    free=("workdir", "tpu", "num_cpu_devices", "accumulate_steps",
          "eval_batch_size"),
    rates=(_RATE_OF_TRAINED, _FINE_TUNING_RATE),
):  # fmt: skip
    """Holds options of training any model.

    workdir: Folder of the run, a local path or gs://, to write checkpoints and
        results to.

    Data options:
    batch_size: Rows per training step over all replicas.
    segment_length: Tokens per row and training step.
    order: Order of the text in each epoch. sequential: always the same; roll:
        every row starts at another token; shuffle: documents are shuffled.
    reset_documents: Clear the memory at the start of each document.

    Optimization options:
    precision: Dtype of activations and matmuls. Weights, softmax, layer norms
        and loss are always float32.
    seed: Seed of the initial weights, of dropout and of the order of the data.
    optimizer: Optimizer. lamb is for large batches; muon orthogonalizes the
        updates of kernels.
    weight_decay: Weight decay of adamw, lamb and muon.
    clip_norm: Global norm to which gradients are clipped; 0 for no clipping.
    schedule: Decay of the learning rate after its warm-up.
    learning_rate: Peak learning rate. Models with 40 million weights or more
        need about 2.5e-4. Default of `txl train` with --initialize_from:
        {rates[0]} for a model that comes with the package, half the rate of a
        run, else {rates[1]}.
    min_learning_rate: Learning rate after the last step.
    warmup_steps: Steps of linear warm-up of the learning rate. Default of `txl
        train`: a tenth of max_steps.
    accumulate_steps: Parts into which each replica divides its rows to
        accumulate gradients: the same step in less memory.

    Evaluation options:
    max_eval_tokens: Score only this many tokens from the start of valid and
        test. Default: all.
    eval_batch_size: Rows per batch in evaluation.

    Device options:
    tpu: Name of the TPU to train on; `local` or empty for the TPU of this
        machine. Default: no TPU.
    num_cpu_devices: Logical devices to split the CPU into; each holds one
        replica. Default: one.
    """

    workdir: str = options.REQUIRED
    batch_size: options.integer(1) = 8
    segment_length: options.integer(1) = 64
    order: options.one_of(ORDERS) = "sequential"
    reset_documents: bool = False
    precision: options.one_of(["float32", "bfloat16", "float16"]) = "float32"
    seed: options.integer(0, 2**32 - 1) = 0
    optimizer: options.one_of(OPTIMIZERS) = "adam"
    weight_decay: options.number(0) = 0.0
    clip_norm: float = 0.25
    schedule: options.one_of(SCHEDULES) = "cosine"
    learning_rate: options.number(0) = 1.5e-3
    min_learning_rate: options.number(0) = 0.0
    warmup_steps: options.integer(0) = None
    accumulate_steps: options.integer(1) = 1
    max_eval_tokens: options.integer(2) = None
    eval_batch_size: options.integer(1) = 16
    tpu: str = None
    num_cpu_devices: options.integer(1) = None


class Loop(
    options.Options,
    free=("eval_every", "checkpoint_every", "max_to_keep",
          "steps_per_execution"),
):  # fmt: skip
    """Holds the options of a `TrainingLoop`, named like its arguments.

    checkpoint_every: Training steps between checkpoints.
    max_to_keep: Number of latest checkpoints to keep. Those of `txl train` can
        be averaged: `txl convert --average`.

    Optimization options:
    max_steps: Training steps in total. Give a larger number to train a finished
        run for longer.

    Evaluation options:
    eval_every: Training steps between evaluations on valid.

    Device options:
    steps_per_execution: Most training steps to run per call from the host.
    """

    max_steps: options.integer(1, 10**9) = 5000
    eval_every: options.integer(1) = 1000
    checkpoint_every: options.integer(1) = 1000
    max_to_keep: options.integer(2) = 2
    steps_per_execution: options.integer(1) = 20


class LanguageTraining(
    options.Options, free=("max_sample_tokens", "attention")
):
    """Holds further options of training a language model.

    max_sample_tokens: Length of the sample in sample.txt at the end of the run;
        0 for no samples. Validation also shows a sample of up to 100 tokens
        and writes WORKDIR/surprise.html, unless these two have taken more than
        2 % of the time so far.

    Optimization options:
    minutes: Approximate minutes that the command takes. It times some steps,
        then chooses max_steps (fewer for a short text); and dropout, precision
        and max_eval_tokens unless they are given. With 300,000 tokens it also
        chooses Muon and 16 rows, and with 2 million and bfloat16 a wider model,
        unless one of them, precision, learning_rate, or another flag of the
        model except dropout is given. With initialize_from, dropout and sizes
        stay those of the trained model, Muon is chosen for the package's models
        only, and a short text is scored after each epoch. Default: max_steps
        counts.
    half_loss: Compute the training loss on the second half of each segment
        only. With --order=roll most other tokens are targets in other epochs.
    cold_starts: Share of segments, drawn at random, before which memory is
        reset, such as 0.1, so that the model also learns to read short prompts.

    Device options:
    attention: Attention implementation for training, registered by an
        extension, such as pallas, a kernel for TPU v4 and later.
    """

    max_sample_tokens: options.integer(0) = 500
    minutes: options.number(0.01, 1e6) = None
    half_loss: bool = False
    cold_starts: options.number(0, 1) = 0.0
    attention: str = None


# They may differ from worker to worker.
_OWN_FLAGS = {
    *Corpus.names(), "vocabulary", "workdir", "tpu", "num_cpu_devices",
}  # fmt: skip


def result_settings():
    """Returns the values of the flags that affect the result of a run."""
    # They are recorded in its config.json and may not change when it resumes.
    found = (x for x in options.defined_flags() if x.affects_result)
    return {flag.name: flag.value for flag in found}


def set_fine_tuning_rate(original):
    """Sets the default `--learning_rate` to half of the original run's."""
    # Trained weights need smaller steps. The right size depends on the model,
    # and so did the original rate. For ours it was found by trials:
    # docs/training.md.
    is_ours = FLAGS.initialize_from in TRAINED
    default = _RATE_OF_TRAINED if is_ours else _FINE_TUNING_RATE
    rate = original.get("learning_rate", 2 * default)
    FLAGS.set_default("learning_rate", rate / 2)


def check_workers(strategy):
    """Checks that all workers have the same flags."""
    found = (x for x in options.defined_flags() if x.name not in _OWN_FLAGS)
    check_alike(strategy, {flag.name: flag.value for flag in found})


def dtype_policy():
    """Returns the Keras dtype policy of `--precision`."""
    if FLAGS.precision == "float32":
        return "float32"
    return f"mixed_{FLAGS.precision}"


def build_trainer(build_model, strategy, batch_size=None):
    """Builds the `Trainer` of the flags."""
    given, steps = LanguageTraining.values(), FLAGS.max_steps
    warmup_steps = FLAGS.warmup_steps
    with strategy.scope():
        model = build_model()
        schedule = build_schedule(
            FLAGS.schedule,
            FLAGS.learning_rate,
            steps,
            steps // 10 if warmup_steps is None else warmup_steps,
            FLAGS.min_learning_rate,
        )
        optimizer = build_optimizer(
            FLAGS.optimizer,
            schedule,
            weight_decay=FLAGS.weight_decay,
        )
    return Trainer(
        model,
        optimizer,
        strategy,
        batch_size or FLAGS.batch_size,
        clip_norm=FLAGS.clip_norm or None,
        seed=FLAGS.seed,
        accumulate_steps=FLAGS.accumulate_steps,
        attention=given.get("attention") or None,
    )


def training_segments(split, segment_length=None):
    """Makes `Segments` of a `PreparedSplit` for training."""
    given = LanguageTraining.values()
    return Segments(
        split.tokens,
        FLAGS.batch_size,
        segment_length or FLAGS.segment_length,
        drop_remainder=True,
        documents=split.documents,
        order=FLAGS.order,
        reset_documents=FLAGS.reset_documents,
        seed=FLAGS.seed,
        half_loss=given.get("half_loss", False),
        cold_starts=given.get("cold_starts", 0.0),
    )


def held_out_segments(tokens, documents, segment_length=None):
    """Makes `Segments` for scoring from the result of `PreparedSplit.head`."""
    return Segments(
        tokens,
        FLAGS.eval_batch_size,
        segment_length or FLAGS.segment_length,
        drop_remainder=False,
        documents=documents,
        reset_documents=FLAGS.reset_documents,
    )
