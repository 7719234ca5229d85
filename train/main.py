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

from txl_keras.data.corpora.files import write_text
from txl_keras.data.statistics import mean_bytes
from txl_keras.data.statistics import typical_passage
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation import report
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.scripts import compiling
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import run_length
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts import training_flags
from txl_keras.scripts import training_run
from txl_keras.scripts.exporting import export_run
from txl_keras.scripts.options import FLAGS
from txl_keras.scripts.samples import Samples
from txl_keras.tpu.slices import TYPES
from txl_keras.tpu.slices import check_kernel
from txl_keras.tpu.slices import check_replicas
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.compilation import describe as describe_strategy
from txl_keras.training.compilation import device_of
from txl_keras.training.memory_estimate import estimate_bytes

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
    # Checked before minutes of waiting for a TPU.
    if FLAGS.tpu_type and FLAGS.attention_kernel:
        check_kernel(TYPES[FLAGS.tpu_type], FLAGS.precision)
    if FLAGS.compile_only:
        sys.exit(0 if compiling.compile_run() else 1)
    training_run.main(LanguageRun)


class LanguageRun(training_run.TrainingRun):
    """Trains a language model, and ends with a sample and an export."""

    def __init__(self, strategy, stop):
        if FLAGS.tpu_type and FLAGS.tpu is not None:
            check_replicas(TYPES[FLAGS.tpu_type], strategy)
        options.refuse(
            FLAGS.attention_kernel and device_of(strategy) != "tpu",
            "`attention_kernel` can only be given with --tpu or "
            "--compile_only: other devices would interpret the kernel, which "
            f"is slow, and the run has {describe_strategy(strategy)}.",
        )
        super().__init__(strategy, stop)
        # Text, model, optimizer.
        origin = _origin(self.workdir)
        self._origin_config = origin and origin.read_model_config()
        self.corpus, self.tokenizer, self.splits = data_flags.prepare_text(
            origin and origin.load_tokenizer()
        )
        self.unit = self.tokenizer.unit
        self.segments = training_flags.training_segments(self.splits["train"])
        if FLAGS.minutes is not None and not self.workdir.is_claimed():
            run_length.choose(strategy, self.build_trainer, self.segments)
        self._held_out = {
            "valid": self.splits["valid"].head(FLAGS.max_eval_tokens),
            "test": self.splits["test"].head(run_length.max_test_tokens()),
        }
        self.valid, self.test = (
            training_flags.held_out_segments(*part)
            for part in self._held_out.values()
        )
        # The first token of a document that resets memory has no score.
        if self.tokenizer.is_lossless and not FLAGS.reset_documents:
            tokens, _ = self._held_out["valid"]
            self.bytes_per_token = {
                "train": mean_bytes(self.splits["train"]),
                "valid": report.bytes_per_token(self.tokenizer, tokens),
            }
        model = self.build_trainer().model
        evaluator = Evaluator(
            model,
            strategy,
            FLAGS.eval_batch_size,
            FLAGS.segment_length,
            stop=stop,
        )
        self.evaluate = evaluator.evaluate
        if origin and origin is not self.workdir:
            start = origin.restore_weights(model)
            self.log(f"{start}, at a learning rate of {FLAGS.learning_rate:g}.")
        self._samples = Samples(
            model,
            strategy,
            self.tokenizer,
            self.workdir,
            stop,
            prompt=lambda: _prompt(self.splits["test"], self.tokenizer),
            text=self._held_out["valid"][0][:_PAGE_TOKENS],
            title=f"{self.corpus.name}, valid",
            segment_length=FLAGS.segment_length,
            max_tokens=FLAGS.max_sample_tokens,
            seed=FLAGS.seed,
        )
        self.per_step = _describe_step(self.trainer)

    def build_model(self):
        """Builds the model of the flags, or like that of the origin."""
        model = model_flags.build_model(
            self.tokenizer.vocabulary_size,
            self.splits["train"].tokens,
            training_flags.dtype_policy(),
            self._origin_config,
        )
        model.backbone.check_positions(FLAGS.segment_length)
        return model

    def describe(self, nll, split):
        """Returns words for nats per token of a split."""
        text = self.bytes_per_token and {
            "bytes_per_token": self.bytes_per_token["train"]
        }
        if split != "train":
            text = self._measure(split)
        return report.score(nll, self.tokenizer, text)

    @functools.cache  # noqa: B019, compressing takes seconds
    def _measure(self, split):
        return report.measure_text(self.tokenizer, self._held_out[split][0])

    def on_score(self, step):
        """Shows a sample after a validation score."""
        super().on_score(step)
        # At the end there is a sample of the best weights.
        if step < self.plan.last_step:
            self._samples.show(step, self.loop.progress, self.loop.tensorboard)

    def finish(self, step, scores):
        """Writes what the best weights give; adds to their scores."""
        for name, (tokens, _) in self._held_out.items():
            scores[name] = {
                **report.add_bits_per_byte(scores[name], self._measure(name)),
                **report.left_out(tokens, self.splits[name].tokens),
            }
        self.plot(scores["valid"])  # with the scores of compressors
        sample, tensorboard = self._samples.write(), self.loop.tensorboard
        write_text(sample, self.workdir.file("sample.txt"))
        tensorboard.write_text("sample", sample, step)
        self._samples.write_page(step, tensorboard)
        tensorboard.close()
        if self.trainer.model.backbone.has_attention:
            # Copied to one device: the trained model may be on several.
            best = self.workdir.load_model("best", self.tokenizer)
            export_run(self.workdir, *best)

    def describe_results(self):
        """Returns words for results.json and the other files."""
        results = self.workdir.read_results()
        export = f"export/{results['step']}"
        is_exported, has_page = (
            tf.io.gfile.exists(self.workdir.file(name))
            for name in (export, "surprise.html")
        )
        lines = [
            f"{split}: {report.describe(results[split], self.tokenizer)}"
            for split in ("valid", "test")
        ]
        return "\n".join(
            [
                *lines,
                "--- A sample that continues a passage of the test text",
                self.workdir.read_sample(),
                "---",
                f"Written to {self.workdir.path}: learning_curve.png, "
                "metrics.jsonl, results.json, sample.txt, "
                + "surprise.html, " * has_page
                + "events (TensorBoard)"
                + f", {export} (SavedModel of the best step)" * is_exported,
                "To score it in other ways or to write more text, use `txl "
                "evaluate` and `txl generate`.",
            ]
        )


def _describe_step(trainer):
    """Returns words for a step: its tokens, and the memory that it takes."""
    parts = estimate_bytes(
        trainer.model,
        trainer.optimizer,
        replica_batch_size(FLAGS.batch_size, trainer.strategy),
        FLAGS.segment_length,
        FLAGS.accumulate_steps,
    )
    mebibytes = ", ".join(
        f"{name} {size / 2**20:,.0f}" for name, size in parts.items()
    )
    step = f"{FLAGS.batch_size * FLAGS.segment_length:,} tokens per step"
    if FLAGS.accumulate_steps > 1:
        step += f" in {FLAGS.accumulate_steps} parts"
    return f"{step}; MiB per device, about: {mebibytes}"


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


if __name__ == "__main__":
    running.run(main)
