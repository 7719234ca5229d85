r"""Trains a Transformer-XL language model on text.

    python train/main.py --flagfile=train/configs/quickstart.flags
    python train/main.py --workdir=runs/mine --corpus=path/to/text_or_folder
    python train/main.py --flagfile=train/configs/enwik8_base.flags \
        --workdir=runs/enwik8 --data_dir=data --tpu=NAME

The same command again goes on where the run was stopped.
"""

import os
import time

import keras
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
from txl_keras.metrics import bits_per_token
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import running
from txl_keras.serving import Generator
from txl_keras.serving import Sampler
from txl_keras.serving import export
from txl_keras.training import optimizers
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.progress import Progress
from txl_keras.training.strategy import create_strategy
from txl_keras.training.strategy import describe as describe_strategy
from txl_keras.training.trainer import Trainer
from txl_keras.training.workdir import Workdir
from txl_keras.training.workdir import read_json
from txl_keras.training.workdir import write_json

FLAGS = flags.FLAGS

# Where the run lives and on what.
flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_string(
    "tpu", None, "Name of a TPU; `local` or empty is that of this machine."
)
flags.DEFINE_integer(
    "num_cpu_devices", None, "Replicas to split the CPU into.", lower_bound=1
)
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16"],
    "Of activations; weights, softmax and loss are float32 always.",
)  # fmt: skip

data_flags.define_corpus_flags()
data_flags.define_tokenizer_flags()
flags.adopt_module_key_flags(data_flags)
model_flags.define_model_flags()
flags.adopt_module_key_flags(model_flags)

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
    "optimizer",
    "adam",
    list(optimizers.OPTIMIZERS),
    "Optimizer; lamb is for large batches.",
)
flags.DEFINE_float(
    "learning_rate", 2.5e-4, "Peak learning rate.", lower_bound=0
)
flags.DEFINE_float(
    "min_learning_rate", 0.0, "Learning rate at the end.", lower_bound=0
)
flags.DEFINE_integer(
    "warmup_steps",
    0,
    "Steps of linear warm-up of the learning rate.",
    lower_bound=0,
)
flags.DEFINE_float("clip_norm", 0.25, "Largest global norm of the gradient.")

# Evaluation and habits: these may change when a run is resumed.
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
flags.DEFINE_integer(
    "steps_per_execution", 20, "Steps in one call of TensorFlow.", lower_bound=1
)
flags.DEFINE_integer(
    "sample_length", 500, "Tokens of the sample at the end.", lower_bound=0
)

_FIXED_FLAGS = (
    *data_flags.TOKENIZER_FLAGS, "precision", "seed", "batch_size",
    "segment_length", "order", "reset_documents", "varlen", "max_steps",
    "optimizer", "learning_rate", "min_learning_rate", "warmup_steps",
    "clip_norm",
)  # fmt: skip


def main(_):
    strategy = create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    keras.utils.set_random_seed(FLAGS.seed)
    workdir = Workdir(FLAGS.workdir)

    replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")

    # Data.
    data_flags.check_outside_text("workdir", FLAGS.workdir)
    corpus, tokenizer, splits = data_flags.prepare_text()
    train = Segments(
        splits["train"].tokens,
        FLAGS.batch_size,
        FLAGS.segment_length,
        drop_remainder=True,
        documents=splits["train"].documents,
        order=FLAGS.order,
        reset_documents=FLAGS.reset_documents,
        varlen=FLAGS.varlen,
        seed=FLAGS.seed,
    )
    held_out = {
        split: splits[split].head(FLAGS.max_eval_tokens)
        for split in ("valid", "test")
    }
    valid, test = (
        Segments(
            tokens,
            FLAGS.eval_batch_size,
            FLAGS.segment_length,
            drop_remainder=False,
            documents=documents,
            reset_documents=FLAGS.reset_documents,
        )
        for tokens, documents in held_out.values()
    )

    # Model.
    with strategy.scope():
        model = model_flags.build_model(
            tokenizer.vocabulary_size,
            splits["train"].tokens,
            "mixed_bfloat16" if FLAGS.precision == "bfloat16" else "float32",
        )
        optimizer = optimizers.OPTIMIZERS[FLAGS.optimizer](
            optimizers.cosine_schedule(
                FLAGS.learning_rate,
                FLAGS.max_steps,
                FLAGS.warmup_steps,
                FLAGS.min_learning_rate,
            )
        )
    _check_positions(model.backbone)
    trainer = Trainer(
        model,
        optimizer,
        strategy,
        FLAGS.batch_size,
        FLAGS.clip_norm,
        FLAGS.seed,
        train.segment_lengths,
    )
    evaluator = Evaluator(model, strategy, FLAGS.eval_batch_size)

    # Start afresh, go on, or see that all is done.
    workdir.claim(
        {
            "flags": {name: FLAGS[name].value for name in _FIXED_FLAGS},
            "model": model.get_config(),
            "tokenizer": tokenizer_hash(tokenizer),
            "corpus": data_flags.corpus_options(),
            "data": {name: s.fingerprint() for name, s in splits.items()},
        }
    )
    save_tokenizer(tokenizer, workdir.tokenizer)
    checkpoints = Checkpoints(workdir.checkpoints, trainer, FLAGS.max_to_keep)
    step = checkpoints.restore()
    workdir.drop_metrics_after(step)
    results_path = workdir.file("results.json")
    _print_start(workdir, corpus, tokenizer, splits, model, strategy)
    print(f"step {step} of {FLAGS.max_steps}", flush=True)
    if step == FLAGS.max_steps and os.path.exists(results_path):
        print(
            "The run is finished. To score or sample it in other ways, use "
            "train/evaluate.py and train/generate.py."
        )
        _print_results(read_json(results_path), tokenizer)
        return

    # Train.
    progress = Progress(
        step, FLAGS.max_steps, FLAGS.batch_size * FLAGS.segment_length
    )
    iterator = iter(train.distribute(strategy, first_step=step))
    valid_scores = None
    while step < FLAGS.max_steps:
        num_steps = min(
            FLAGS.steps_per_execution,
            FLAGS.eval_every - step % FLAGS.eval_every,
            FLAGS.checkpoint_every - step % FLAGS.checkpoint_every,
            FLAGS.max_steps - step,
        )
        start = time.monotonic()
        try:
            losses = trainer.train(iterator, num_steps)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"{error} Training stopped; the last good checkpoint: "
                f"{checkpoints.latest or 'none yet'}. Lower --learning_rate "
                "or raise --warmup_steps, in a new --workdir."
            ) from error
        seconds = time.monotonic() - start
        step += num_steps
        loss = float(losses["loss"].mean())
        metrics = {
            "step": step,
            "loss": loss,
            "bits_per_token": bits_per_token(loss),
            "gradient_norm": float(losses["gradient_norm"].mean()),
            "learning_rate": float(optimizer.learning_rate),
        }
        progress.update(num_steps, seconds, loss, score(loss, tokenizer))
        if step % FLAGS.eval_every == 0 or step == FLAGS.max_steps:
            metrics["valid"] = valid_scores = evaluator.evaluate(valid)
            reached = score(valid_scores["nll"], tokenizer)
            progress.write(f"step {step}: valid {reached}")
        workdir.append_metrics(metrics)
        if step % FLAGS.checkpoint_every == 0 or step == FLAGS.max_steps:
            checkpoints.save()
    progress.close()

    # Finish.
    print("Scoring test, writing a sample, exporting.", flush=True)
    results = {
        "step": step,
        "valid": valid_scores or evaluator.evaluate(valid),
        "test": evaluator.evaluate(test),
    }
    for split, (tokens, _) in held_out.items():
        results[split] = add_bits_per_byte(results[split], tokenizer, tokens)
    plot_learning_curve(
        workdir.read_metrics(),
        workdir.file("learning_curve.png"),
        tokenizer.unit,
        results["valid"],
    )
    # A copy on one device: the model itself may live on many.
    served, _ = workdir.load_model()
    prompt = splits["test"].tokens[: FLAGS.segment_length]
    write = Generator(
        served,
        Sampler(temperature=0.8, top_p=0.95),
        workdir.generation_memory_length(),
    )
    sample = [
        int(token[0])
        for token in write(prompt[None], FLAGS.sample_length, FLAGS.seed)
    ]
    with open(workdir.file("sample.txt"), "w", encoding="utf-8") as file:
        file.write(tokenizer.decode(sample))
    export(served, workdir.file(f"export/{step}"))
    write_json(results, results_path)
    _print_results(results, tokenizer)


def _print_start(workdir, corpus, tokenizer, splits, model, strategy):
    tokens = ", ".join(
        f"{len(s.tokens):,} {name}" for name, s in splits.items()
    )
    cutoffs = model.get_config()["backbone"]["config"]["cutoffs"]
    print(
        f"{workdir.path}: {corpus.name}, {tokens} tokens, a vocabulary of "
        f"{tokenizer.vocabulary_size:,}"
        + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
        + f"; {model.count_params():,} weights; {describe_strategy(strategy)}; "
        f"{FLAGS.batch_size * FLAGS.segment_length:,} tokens a step"
    )


def _check_positions(backbone):
    limit = backbone.max_positions
    if backbone.attention_type == "al_rfou" and FLAGS.segment_length > limit:
        raise ValueError(
            "`segment_length` must be at most `max_positions` with "
            f"attention_type=al_rfou. Received: "
            f"segment_length={FLAGS.segment_length}, max_positions={limit}"
        )


def _print_results(results, tokenizer):
    for split in ("valid", "test"):
        print(f"{split}: {describe(results[split], tokenizer)}")
    sample = Workdir(FLAGS.workdir).file("sample.txt")
    with open(sample, encoding="utf-8") as file:
        print(f"--- {sample}, from inside the test text\n{file.read()}\n---")
    print(
        f"In {FLAGS.workdir}: learning_curve.png, metrics.jsonl, "
        f"results.json, sample.txt, export/{results['step']} (SavedModel)"
    )


if __name__ == "__main__":
    running.run(main)
