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

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf

from txl_keras.data.statistics import mean_bytes
from txl_keras.data.statistics import typical_passage
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation import report
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.extending import registered
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
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.memory_estimate import estimate_bytes
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import create_strategy
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all

# The prompt of the sample is a passage from the first tokens of test.
_MAX_PROMPT_TOKENS = 100_000
# Tokens of valid in surprise.html.
_PAGE_TOKENS = 1000

data_flags.Corpus.define()
data_flags.Tokenizer.define()
model_flags.define_model_flags()
trained_model.Origin.define()
training_flags.Training.define(workdir=None)
training_flags.LanguageTraining.define()
for added in registered("train").values():
    added.define()


def main(_):
    for added in registered("train").values():
        added.begin()
    options.refuse(
        FLAGS.workdir is None or FLAGS.corpus is None,
        "`workdir` and `corpus` must be given.",
    )
    strategy = create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    # In a cluster TensorFlow installs its own signal handler, so this one must
    # be installed after the strategy is created.
    with StopRequest() as stop:
        workdir, new_length = training_run.open_workdir(strategy)

        # Text, tokenizer and segments.
        origin = _load_origin(workdir)
        text = data_flags.prepare_text(origin and origin.load_tokenizer())
        tokenizer = text.tokenizer
        segments = training_flags.training_segments(text.splits["train"])

        # Model and trainer.
        config = origin and origin.read_model_config()
        build_model = functools.partial(_build_model, text, config)
        build = functools.partial(
            training_flags.build_trainer, build_model, strategy, stop
        )
        # This changes flags that `build` and what follows read.
        if FLAGS.minutes is not None and not workdir.is_claimed():
            run_length.choose(strategy, build, segments)
        valid = HeldOut(text, "valid", FLAGS.max_eval_tokens)
        test = HeldOut(text, "test", run_length.max_test_tokens())
        trainer, plan = build()
        evaluator = Evaluator(
            trainer.model,
            strategy,
            FLAGS.eval_batch_size,
            FLAGS.segment_length,
            stop=stop,
        )
        if origin and origin is not workdir:
            source = origin.restore_weights(trainer.model)
            rate = f"at a learning rate of {FLAGS.learning_rate:g}"
            training_run.log(strategy, f"{source}, {rate}.")
        del origin  # and the memory of its weights

        # Training.
        samples = Samples(
            tokenizer,
            prompt=_prompt(text.splits["test"], tokenizer),
            text=valid.tokens[:_PAGE_TOKENS],
            title=f"{text.corpus.name}, valid",
            segment_length=FLAGS.segment_length,
            max_tokens=FLAGS.max_sample_tokens,
            seed=FLAGS.seed,
        )
        draw_curve = functools.partial(training_run.draw_curve, tokenizer.unit)
        sizes = _bytes_per_token(text, valid)
        loop = training_run.start(
            workdir,
            text,
            _describe_step(trainer),
            new_length,
            trainer=trainer,
            plan=plan,
            segments=segments,
            validate=functools.partial(evaluator.evaluate, valid.segments),
            stop=stop,
            describe=functools.partial(_describe, sizes, valid),
            on_score=(draw_curve, samples.show),
            bytes_per_token=sizes,
        )
        if not loop.is_finished():
            if not loop.run(run_length.Pace(plan, trainer, segments)):
                training_run.exit_stopped(loop)

            # Scores, sample and export of the best weights.
            step, scores = training_run.score_best(
                loop, evaluator.evaluate, test.segments
            )
            if is_chief(strategy):
                scores = {
                    "valid": valid.complete(scores["valid"]),
                    "test": test.complete(scores["test"]),
                }
                draw_curve(loop, scores=scores["valid"])
                samples.finish(loop, step)
                if trainer.model.backbone.has_attention:
                    # Copied to one device: that model may be on several.
                    best = workdir.load_model("best", tokenizer)
                    export_run(workdir, *best)
                workdir.write_results({"step": step, **scores})
        if is_chief(strategy):
            print(_describe_results(workdir, tokenizer), flush=True)
        wait_for_all(strategy)


class HeldOut:
    """A split to score: its first tokens and their segments."""

    def __init__(self, text, name, max_tokens):
        split = text.splits[name]
        self.tokenizer, self._all_tokens = text.tokenizer, split.tokens
        self.tokens, documents = split.head(max_tokens)
        self.segments = training_flags.held_out_segments(self.tokens, documents)

    @functools.cached_property
    def facts(self):
        """Returns what `report` needs; compressing the text takes seconds."""
        if not _has_bytes(self.tokenizer):
            return None
        return report.measure_text(self.tokenizer, self.tokens)

    def score(self, nll):
        """Formats a loss in nats per token."""
        return report.score(nll, self.tokenizer, self.facts)

    def complete(self, scores):
        """Adds bits per byte, and how many tokens were left out."""
        return {
            **report.add_bits_per_byte(scores, self.facts),
            **report.left_out(self.tokens, self._all_tokens),
        }


def _build_model(text, config):
    """Builds the model of the flags, or like that of a `config`."""
    model = model_flags.build_model(
        text.tokenizer.vocabulary_size,
        text.splits["train"].tokens,
        training_flags.dtype_policy(),
        config,
    )
    model.backbone.check_positions(FLAGS.segment_length)
    return model


def _has_bytes(tokenizer):
    """Returns whether the tokens with a score are all of the text's bytes."""
    # The first token of a document that resets memory has no score.
    return tokenizer.is_lossless and not FLAGS.reset_documents


def _bytes_per_token(text, valid):
    """Returns the means of train and valid, `None` if they are not known."""
    if not _has_bytes(text.tokenizer):
        return None
    return {
        "train": mean_bytes(text.splits["train"]),
        "valid": report.bytes_per_token(text.tokenizer, valid.tokens),
    }


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


def _load_origin(workdir):
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


def _describe(bytes_per_token, valid, nll, split):
    """Returns words for nats per token of a split."""
    if split == "valid":
        return valid.score(nll)
    facts = bytes_per_token and {"bytes_per_token": bytes_per_token[split]}
    return report.score(nll, valid.tokenizer, facts)


def _describe_results(workdir, tokenizer):
    """Returns words for results.json and the other files."""
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
