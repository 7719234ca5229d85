r"""Trains a Transformer-XL language model on text.

    txl train --flagfile=quickstart
    txl train --workdir=runs/mine --corpus=path/to/text_or_folder
    txl train --flagfile=enwik8_base \
        --workdir=gs://BUCKET/enwik8 --data_dir=gs://BUCKET/data --tpu=local
    txl train --flagfile=enwik8_base \
        --flagfile=v2_8 --compile_only

Run the same command again to resume a run that was stopped. SIGTERM, SIGHUP (a
closed terminal) and Ctrl-C finish the current step, save a checkpoint and exit
with code 75.
"""

import functools
import sys

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.data.statistics import mean_bytes
from txl_keras.data.statistics import typical_passage
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation import report
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.scripts import compiling
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import run_length
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts import training_flags
from txl_keras.scripts import training_run
from txl_keras.scripts.exporting import export_run
from txl_keras.scripts.samples import Samples
from txl_keras.tpu.slices import check_kernel
from txl_keras.tpu.slices import check_replicas
from txl_keras.tpu.slices import tpu_type
from txl_keras.training.bundles import saved_steps
from txl_keras.training.compilation import describe as describe_strategy
from txl_keras.training.compilation import device_of
from txl_keras.training.memory_estimate import estimate_bytes

FLAGS = flags.FLAGS

# The prompt of the sample is a passage from the first tokens of test.
_MAX_PROMPT_TOKENS = 100_000
# Those of valid in surprise.html.
_PAGE_TOKENS = 1000

data_flags.Corpus.define()
data_flags.Tokenizer.define()
model_flags.define_model_flags()
trained_model.Origin.define()
training_flags.Training.define(workdir=None)
training_flags.LanguageTraining.define()
compiling.Compilation.define()


@flags.multi_flags_validator(
    ["workdir", "corpus", "compile_only"],
    "--workdir and --corpus must be given, unless --compile_only is given",
)
def _are_given(values):
    given = values["workdir"] is not None and values["corpus"] is not None
    return given or values["compile_only"]


def main(_):
    if FLAGS.compile_only:
        sys.exit(0 if compiling.compile_run() else 1)
    # Checked before minutes of waiting for a TPU.
    slice_ = tpu_type(FLAGS.tpu_type) if FLAGS.tpu_type else None
    if slice_ and FLAGS.attention_kernel:
        check_kernel(slice_, FLAGS.precision)
    training_run.main(train)


def train(strategy, stop):
    """Trains and scores test; returns False if it was stopped."""
    _check_device(strategy)
    run = training_run.TrainingRun(strategy, stop)
    workdir = run.workdir

    # Text, model, optimizer.
    origin = _origin(workdir)
    origin_config = origin and origin.read_model_config()
    corpus, tokenizer, splits = data_flags.prepare_text(
        origin and origin.load_tokenizer()
    )
    segments = training_flags.training_segments(splits["train"])

    def build_model():
        model = model_flags.build_model(
            tokenizer.vocabulary_size,
            splits["train"].tokens,
            training_flags.dtype_policy(),
            origin_config,
        )
        model.backbone.check_positions(FLAGS.segment_length)
        return model

    def build():
        return run.build_trainer(
            build_model,
            segment_lengths=segments.segment_lengths,
            intermediate_loss_steps=training_flags.intermediate_loss_steps(),
            attention_kernel=FLAGS.attention_kernel,
        )

    if FLAGS.minutes is not None and not workdir.is_claimed():
        run_length.choose(strategy, build, segments)
    held_out = {
        "valid": splits["valid"].head(FLAGS.max_eval_tokens),
        "test": splits["test"].head(run_length.max_test_tokens()),
    }
    valid, test = (
        training_flags.held_out_segments(*held_out[name]) for name in held_out
    )

    sizes = None
    # The first token of a document that resets memory has no score.
    if tokenizer.is_lossless and not FLAGS.reset_documents:
        sizes = {
            "train": mean_bytes(splits["train"]),
            "valid": report.bytes_per_token(tokenizer, held_out["valid"][0]),
        }

    @functools.cache  # compressing takes seconds
    def text_of(name):
        return report.measure_text(tokenizer, held_out[name][0])

    model = build().model
    evaluator = Evaluator(
        model,
        strategy,
        FLAGS.eval_batch_size,
        FLAGS.segment_length,
        stop=stop,
    )

    # Start, resume, or find that the run is finished.
    if origin and origin is not workdir:
        start = _restore_origin(origin, model)
        run.log(f"{start}, at a learning rate of {FLAGS.learning_rate:g}.")
    samples = Samples(
        model,
        strategy,
        tokenizer,
        workdir,
        stop,
        prompt=lambda: _prompt(splits["test"], tokenizer),
        text=held_out["valid"][0][:_PAGE_TOKENS],
        title=f"{corpus.name}, valid",
        segment_length=FLAGS.segment_length,
        max_tokens=FLAGS.max_sample_tokens,
        seed=FLAGS.seed,
    )
    parts = estimate_bytes(
        model,
        run.trainer.optimizer,
        replica_batch_size(FLAGS.batch_size, strategy),
        FLAGS.segment_length,
        FLAGS.accumulate_steps,
    )
    mebibytes = ", ".join(
        f"{name} {size / 2**20:,.0f}" for name, size in parts.items()
    )
    per_step = f"{FLAGS.batch_size * FLAGS.segment_length:,} tokens per step"
    if FLAGS.accumulate_steps > 1:
        per_step += f" in {FLAGS.accumulate_steps} parts"

    # Finish with the best weights.
    def finish(best_step, scores):
        for name in held_out:
            scores[name] = {
                **report.add_bits_per_byte(scores[name], text_of(name)),
                **report.left_out(held_out[name][0], splits[name].tokens),
            }
        plot_learning_curve(
            workdir.read_metrics(),
            workdir.file("learning_curve.png"),
            tokenizer.unit,
            scores["valid"],  # with the scores of compressors
        )
        sample, tensorboard = samples.write(), run.loop.tensorboard
        workdir.write_sample(sample)
        tensorboard.write_text("sample", sample, best_step)
        samples.write_page(best_step, tensorboard)
        tensorboard.close()
        if model.backbone.has_attention:
            # Copied to one device: the trained model may be on several.
            export_run(workdir, *workdir.load_model("best"))

    return run.complete(
        corpus,
        tokenizer,
        splits,
        segments,
        training_flags.result_settings(),
        evaluate=evaluator.evaluate,
        valid=valid,
        test=test,
        describe=lambda nll: report.score(
            nll, tokenizer, sizes and {"bytes_per_token": sizes["train"]}
        ),
        describe_valid=lambda nll: report.score(
            nll, tokenizer, text_of("valid")
        ),
        unit=tokenizer.unit,
        per_step=f"{per_step}; MiB per device, about: {mebibytes}",
        finish=finish,
        describe_results=lambda: _describe_results(workdir, tokenizer),
        samples=samples,
        bytes_per_token=sizes,
    )


def _check_device(strategy):
    """Checks that the flags of a TPU suit the devices of the run."""
    if FLAGS.tpu_type and FLAGS.tpu is not None:
        check_replicas(tpu_type(FLAGS.tpu_type), strategy)
    if FLAGS.attention_kernel and device_of(strategy) != "tpu":
        raise ValueError(
            "`attention_kernel` can only be given with --tpu or "
            "--compile_only: other devices would interpret the kernel, which "
            "is slow. Received: attention_kernel=True, on "
            f"{describe_strategy(strategy)}"
        )


def _origin(workdir):
    """Returns what provides model and tokenizer, or `None`."""
    if FLAGS.initialize_from is None:
        return None
    training_flags.check_inherited_flags()
    # A run with a checkpoint has its own model and tokenizer.
    if saved_steps(workdir.checkpoints):
        rate = workdir.read_config()["flags"].get("learning_rate")
        FLAGS.set_default("learning_rate", rate or FLAGS.learning_rate)
        return workdir
    origin = trained_model.TrainedOrigin()
    training_flags.set_fine_tuning_rate(origin.flags)
    return origin


def _restore_origin(origin, model):
    """Loads the weights to start from; returns words on them."""
    try:
        return origin.restore_weights(model)
    except ValueError as error:
        changes = [f"--{k}={v}" for k, v in model_flags.given().items()]
        if not changes:
            raise
        raise ValueError(
            "Flags must not change the shapes of the weights of "
            f"`initialize_from`. Received: {', '.join(changes)} ({error})"
        ) from error


def _prompt(test, tokenizer):
    """Returns a segment of test that starts a line or a document."""
    tokens, documents = test.head(_MAX_PROMPT_TOKENS)
    try:
        newline = tokenizer.encode("\n")
    except ValueError:  # some vocabularies lack the newline
        newline = []
    lines = []
    if len(newline) == 1:
        lines = np.flatnonzero(tokens == newline[0]) + 1
    starts = np.unique([*documents, *lines]).tolist()
    return typical_passage(tokens[:], starts, FLAGS.segment_length)


def _describe_results(workdir, tokenizer):
    results = workdir.read_results()
    export = f"export/{results['step']}"
    is_exported, has_page = (
        tf.io.gfile.exists(workdir.file(name))
        for name in (export, "surprise.html")
    )
    lines = [
        f"{split}: {report.describe(results[split], tokenizer)}"
        for split in ("valid", "test")
    ]
    return "\n".join(
        [
            *lines,
            "--- A sample that continues a passage of the test text",
            workdir.read_sample(),
            "---",
            f"Written to {workdir.path}: learning_curve.png, metrics.jsonl, "
            "results.json, sample.txt, "
            + "surprise.html, " * has_page
            + "events (TensorBoard)"
            + f", {export} (SavedModel of the best step)" * is_exported,
            "To score it in other ways or to write more text, use `txl "
            "evaluate` and `txl generate`.",
        ]
    )


if __name__ == "__main__":
    running.run(main)
