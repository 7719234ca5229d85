r"""Trains a Transformer-XL language model on text.

    python train/main.py --flagfile=train/configs/quickstart.flags
    python train/main.py --workdir=runs/mine --corpus=path/to/text_or_folder
    python train/main.py --flagfile=train/configs/enwik8_base.flags \
        --workdir=gs://BUCKET/enwik8 --data_dir=gs://BUCKET/data --tpu=local

The same command again goes on where the run was stopped. SIGTERM and Ctrl-C
stop it after the step that runs, save, and exit with code 75.
"""

import sys
import time

import keras
import tensorflow as tf
from absl import flags

from txl_keras.data import Segments
from txl_keras.data import save_tokenizer
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.segments import ORDERS
from txl_keras.data.segments import replica_batch_size
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.evaluation.report import add_bits_per_byte
from txl_keras.evaluation.report import describe
from txl_keras.evaluation.report import score
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import running
from txl_keras.serving import Generator
from txl_keras.serving import Sampler
from txl_keras.serving import export
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.checkpointing import restore_weights
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.memory_estimate import estimate_bytes
from txl_keras.training.optimizers import OPTIMIZERS
from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.profiler import Profile
from txl_keras.training.progress import Progress
from txl_keras.training.schedules import SCHEDULES
from txl_keras.training.schedules import build_schedule
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import create_strategy
from txl_keras.training.strategy import describe as describe_strategy
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all
from txl_keras.training.tensorboard import TensorBoard
from txl_keras.training.trainer import Trainer
from txl_keras.training.workdir import Workdir
from txl_keras.training.workdir import read_json
from txl_keras.training.workdir import write_json

FLAGS = flags.FLAGS

# Where the run lives and on what.
flags.DEFINE_string(
    "workdir", None, "Folder of the run, local or gs://.", required=True
)
flags.DEFINE_string(
    "tpu", None, "Name of a TPU; `local` or empty is that of this machine."
)
flags.DEFINE_integer(
    "num_cpu_devices", None, "Replicas to split the CPU into.", lower_bound=1
)
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16", "float16"],
    "Of activations; weights, softmax, norms and loss are float32 always.",
)  # fmt: skip

data_flags.define_corpus_flags()
data_flags.define_tokenizer_flags()
flags.adopt_module_key_flags(data_flags)
model_flags.define_model_flags()
flags.adopt_module_key_flags(model_flags)

flags.DEFINE_string(
    "initialize_from", None,
    "Workdir whose best weights, model and tokenizer to begin with.",
)  # fmt: skip

# Training.
flags.DEFINE_integer("seed", 0, "Of initial weights and dropout.")
flags.DEFINE_integer("batch_size", 16, "Rows over all replicas.", lower_bound=1)
flags.DEFINE_integer(
    "segment_length", 128, "Tokens of a row in a step.", lower_bound=1
)
flags.DEFINE_enum(
    "order", "sequential", ORDERS,
    "Of an epoch: roll begins every row elsewhere, shuffle mixes documents.",
)  # fmt: skip
flags.DEFINE_bool(
    "reset_documents", False, "Forget memory where a document begins."
)
flags.DEFINE_bool("varlen", False, "Vary the length of segments.")
flags.DEFINE_integer("max_steps", 1000, "Steps of training.", lower_bound=1)
flags.DEFINE_enum(
    "optimizer", "adam", OPTIMIZERS, "Optimizer; lamb is for large batches."
)
flags.DEFINE_float("weight_decay", 0.0, "Of adamw and lamb.", lower_bound=0)
flags.DEFINE_float("momentum", 0.0, "Of sgd.", lower_bound=0)
flags.DEFINE_float("beta_1", None, "Of adam, adamw, lamb. Default: 0.9.")
flags.DEFINE_float("beta_2", None, "Of the same. Default: 0.999.")
flags.DEFINE_float("epsilon", None, "Of the same. Default: 1e-9; lamb 1e-6.")
flags.DEFINE_float("clip_norm", 0.25, "Largest global norm of the gradient.")
flags.DEFINE_enum(
    "schedule", "cosine", SCHEDULES, "Of the learning rate, after its warm-up."
)
flags.DEFINE_float(
    "learning_rate", 2.5e-4, "Peak learning rate.", lower_bound=0
)
flags.DEFINE_float(
    "min_learning_rate", 0.0, "Learning rate at the end.", lower_bound=0
)
flags.DEFINE_integer(
    "warmup_steps", 0, "Steps of linear warm-up of the learning rate.",
    lower_bound=0,
)  # fmt: skip
flags.DEFINE_bool(
    "subtract_warmup", True,
    "Begin the cosine at the end of the warm-up, as the original TensorFlow "
    "code does. Its PyTorch code begins it at step 0.",
)  # fmt: skip

# Evaluation and habits: these may change when a run is resumed.
flags.DEFINE_integer(
    "accumulate_steps", 1,
    "Pieces that a replica computes its rows in, one after the other: the same "
    "step in less memory.", lower_bound=1,
)  # fmt: skip
flags.DEFINE_integer(
    "eval_batch_size", 16, "Rows in evaluation.", lower_bound=1
)
flags.DEFINE_integer(
    "max_eval_tokens", None,
    "Score only the first tokens of valid and test. Default: all.",
    lower_bound=2,
)  # fmt: skip
flags.DEFINE_integer(
    "eval_every", 500, "Steps between scores of valid.", lower_bound=1
)
flags.DEFINE_integer(
    "checkpoint_every", 500, "Steps between checkpoints.", lower_bound=1
)
flags.DEFINE_integer(
    "max_to_keep", 2, "Checkpoints, for train/average.py.", lower_bound=2
)
flags.DEFINE_string(
    "profile_steps", None,
    "FIRST,LAST: trace the steps after FIRST, up to LAST, for TensorBoard.",
)  # fmt: skip
flags.DEFINE_integer(
    "steps_per_execution", 20, "Steps in one call of TensorFlow.", lower_bound=1
)
flags.DEFINE_integer(
    "sample_length", 500, "Tokens of the sample at the end.", lower_bound=0
)

_FIXED_FLAGS = (
    *data_flags.TOKENIZER_FLAGS, "initialize_from", "precision", "seed",
    "batch_size", "segment_length", "order", "reset_documents", "varlen",
    "max_steps", "optimizer", "weight_decay", "momentum", "beta_1", "beta_2",
    "epsilon", "clip_norm", "schedule", "learning_rate", "min_learning_rate",
    "warmup_steps", "subtract_warmup",
)  # fmt: skip


def main(_):
    strategy = create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    keras.utils.set_random_seed(FLAGS.seed)
    replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")
    data_flags.check_outside_text("workdir", FLAGS.workdir)
    workdir = Workdir(FLAGS.workdir)
    workdir.check_writable()
    profile = Profile(workdir.events, FLAGS.profile_steps)
    origin = _origin(workdir)
    corpus, tokenizer, splits = data_flags.prepare_text(
        origin and origin.load_tokenizer()
    )
    train = _training_segments(splits["train"])
    held_out = {
        name: splits[name].head(FLAGS.max_eval_tokens)
        for name in ("valid", "test")
    }
    with strategy.scope():
        model, optimizer = _build(tokenizer, splits["train"].tokens, origin)
    stop = StopRequest()
    trainer = Trainer(
        model,
        optimizer,
        strategy,
        FLAGS.batch_size,
        clip_norm=FLAGS.clip_norm,
        seed=FLAGS.seed,
        segment_lengths=train.segment_lengths,
        accumulate_steps=FLAGS.accumulate_steps,
        stop=stop,
    )
    evaluator = Evaluator(model, strategy, FLAGS.eval_batch_size, stop=stop)
    valid, test = map(_held_out_segments, held_out.values())

    # Start afresh, go on, or see that all is done.
    _claim(workdir, model, tokenizer, splits, strategy)
    checkpoints = Checkpoints(
        workdir.checkpoints, trainer, FLAGS.max_to_keep, workdir.best
    )
    if origin and not checkpoints.latest:
        origin.restore_weights(model, "best")
    say = print if is_chief(strategy) else _say_nothing
    tensorboard = TensorBoard(workdir.events if is_chief(strategy) else None)
    loop = TrainingLoop(
        trainer,
        train,
        lambda: evaluator.evaluate(valid),
        workdir,
        checkpoints,
        max_steps=FLAGS.max_steps,
        eval_every=FLAGS.eval_every,
        checkpoint_every=FLAGS.checkpoint_every,
        steps_per_execution=FLAGS.steps_per_execution,
        progress=Progress(
            FLAGS.max_steps,
            FLAGS.batch_size * FLAGS.segment_length,
            lambda nll: score(nll, tokenizer),
            is_shown=is_chief(strategy),
        ),
        tensorboard=tensorboard,
        profile=profile,
    )
    step = loop.restore()
    say(_describe_start(workdir, corpus, tokenizer, splits, trainer))
    say(f"step {step} of {FLAGS.max_steps}", flush=True)
    results_path = workdir.file("results.json")
    if step == FLAGS.max_steps and tf.io.gfile.exists(results_path):
        say(
            "The run is finished. To score or sample it in other ways, use "
            "train/evaluate.py and train/generate.py."
        )
        say(_describe_results(read_json(results_path), tokenizer, workdir))
        return

    # Train.
    start = time.monotonic()
    with stop:
        is_done = loop.run()
    # Before others go on, or leave, the chief has written all.
    wait_for_all(strategy)
    if not is_done:
        reached = int(trainer.step.numpy())
        say(f"Stopped after step {reached}; the same command goes on there.")
        sys.exit(EXIT_CODE)
    say(_describe_speed(step, start))

    # Finish, with the best weights.
    say("Scoring test, writing a sample, exporting.", flush=True)
    best_step = restore_weights(model, workdir.best)
    results = {
        "step": best_step,
        "valid": loop.score_at(best_step),
        "test": evaluator.evaluate(test),
    }
    if is_chief(strategy):
        for name, (tokens, _) in held_out.items():
            results[name] = add_bits_per_byte(results[name], tokenizer, tokens)
        _finish(workdir, results, tokenizer, splits["test"].tokens, tensorboard)
        write_json(results, results_path)
        say(_describe_results(results, tokenizer, workdir))
    wait_for_all(strategy)


def _origin(workdir):
    """The run whose model and tokenizer this one has, or `None`."""
    if FLAGS.initialize_from is None:
        return None
    for name in ("preset", "tokenizer", "vocabulary"):
        if FLAGS[name].present:
            raise ValueError(
                f"`{name}` cannot be given with `initialize_from`, which "
                f"brings its own. Received: {name}={FLAGS[name].value}, "
                f"initialize_from={FLAGS.initialize_from}"
            )
    # A run that goes on needs that other one no more.
    return workdir if workdir.is_claimed() else Workdir(FLAGS.initialize_from)


def _training_segments(split):
    return Segments(
        split.tokens,
        FLAGS.batch_size,
        FLAGS.segment_length,
        drop_remainder=True,
        documents=split.documents,
        order=FLAGS.order,
        reset_documents=FLAGS.reset_documents,
        varlen=FLAGS.varlen,
        seed=FLAGS.seed,
    )


def _held_out_segments(tokens_and_documents):
    tokens, documents = tokens_and_documents
    return Segments(
        tokens,
        FLAGS.eval_batch_size,
        FLAGS.segment_length,
        drop_remainder=False,
        documents=documents,
        reset_documents=FLAGS.reset_documents,
    )


def _build(tokenizer, train_tokens, origin):
    """Model and optimizer."""
    policy = "float32"
    if FLAGS.precision != "float32":
        policy = f"mixed_{FLAGS.precision}"
    model = model_flags.build_model(
        tokenizer.vocabulary_size,
        train_tokens,
        policy,
        origin and origin.read_config()["model"],
    )
    _check_positions(model.backbone)
    schedule = build_schedule(
        FLAGS.schedule,
        FLAGS.learning_rate,
        FLAGS.max_steps,
        FLAGS.warmup_steps,
        FLAGS.min_learning_rate,
        FLAGS.subtract_warmup,
    )
    return model, build_optimizer(
        FLAGS.optimizer,
        schedule,
        FLAGS.weight_decay,
        FLAGS.momentum,
        FLAGS.beta_1,
        FLAGS.beta_2,
        FLAGS.epsilon,
    )


def _check_positions(backbone):
    limit = backbone.max_positions
    if backbone.attention_type == "al_rfou" and FLAGS.segment_length > limit:
        raise ValueError(
            "`segment_length` must be at most `max_positions` with "
            f"attention_type=al_rfou. Received: "
            f"segment_length={FLAGS.segment_length}, max_positions={limit}"
        )


def _claim(workdir, model, tokenizer, splits, strategy):
    """Makes the workdir that of this run, or sees that it is."""
    config = {
        "flags": {name: FLAGS[name].value for name in _FIXED_FLAGS},
        "model": model.get_config(),
        "tokenizer": tokenizer_hash(tokenizer),
        "corpus": data_flags.corpus_options(),
        "data": {name: s.fingerprint() for name, s in splits.items()},
    }
    if is_chief(strategy):
        workdir.claim(config)
        save_tokenizer(tokenizer, workdir.tokenizer)
    wait_for_all(strategy)
    # Of the other workers: do they have the same flags and text?
    workdir.check_config(config)


def _finish(workdir, results, tokenizer, test_tokens, tensorboard):
    """Draws the curve, writes a sample, exports the model."""
    plot_learning_curve(
        workdir.read_metrics(),
        workdir.file("learning_curve.png"),
        tokenizer.unit,
        results["valid"],
    )
    # A copy on one device: the model itself may live on many.
    served, step = workdir.load_model("best")
    write = Generator(
        served,
        Sampler(temperature=0.8, top_p=0.95),
        workdir.generation_memory_length(),
    )
    prompt = test_tokens[: FLAGS.segment_length]
    sample = tokenizer.decode(
        [
            int(token[0])
            for token in write(prompt[None], FLAGS.sample_length, FLAGS.seed)
        ]
    )
    with tf.io.gfile.GFile(workdir.file("sample.txt"), "w") as file:
        file.write(sample)
    tensorboard.write_text("sample", sample, step)
    tensorboard.close()
    export(served, workdir.file(f"export/{step}"))


def _say_nothing(*_, **__):
    """Of several workers one speaks."""


def _describe_start(workdir, corpus, tokenizer, splits, trainer):
    tokens = ", ".join(
        f"{len(s.tokens):,} {name}" for name, s in splits.items()
    )
    model = trainer.model
    cutoffs = model.get_config()["backbone"]["config"]["cutoffs"]
    parts = estimate_bytes(
        model,
        trainer.optimizer,
        trainer.piece_rows,
        FLAGS.segment_length,
    )
    mebibytes = ", ".join(
        f"{name} {size / 2**20:,.0f}" for name, size in parts.items()
    )
    pieces = ""
    if FLAGS.accumulate_steps > 1:
        pieces = f" in {FLAGS.accumulate_steps} pieces"
    return (
        f"{workdir.path}: {corpus.name}, {tokens} tokens, a vocabulary of "
        f"{tokenizer.vocabulary_size:,}"
        + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
        + f"; {model.count_params():,} weights in {FLAGS.precision}\n"
        f"{describe_strategy(trainer.strategy)}; "
        f"{FLAGS.batch_size * FLAGS.segment_length:,} tokens a step{pieces}; "
        f"MiB on each device, about: {mebibytes}"
    )


def _describe_speed(first_step, start):
    steps = FLAGS.max_steps - first_step
    tokens = steps * FLAGS.batch_size * FLAGS.segment_length
    seconds = time.monotonic() - start
    return (
        f"{steps:,} steps, {tokens:,} tokens in {seconds:,.0f} s with all "
        f"scores and checkpoints: {tokens / seconds:,.0f} tokens/s."
    )


def _describe_results(results, tokenizer, workdir):
    lines = [
        f"{split}: {describe(results[split], tokenizer)}"
        for split in ("valid", "test")
    ]
    sample = workdir.file("sample.txt")
    with tf.io.gfile.GFile(sample) as file:
        lines.append(
            f"--- {sample}, from inside the test text\n{file.read()}\n---"
        )
    lines.append(
        f"In {workdir.path}: learning_curve.png, metrics.jsonl, results.json, "
        f"sample.txt, events (TensorBoard), export/{results['step']} "
        f"(SavedModel of the best step, {results['step']})"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    running.run(main)
