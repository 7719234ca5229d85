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

from txl_keras.data.statistics import mean_bytes
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation import report
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.extending import registered
from txl_keras.metrics import bits_per_token
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

# Tokens of valid in surprise.html.
_PAGE_TOKENS = 1000

data_flags.Corpus.define()
data_flags.Tokenizer.define()
model_flags.define_model_flags()
trained_model.Origin.define()
training_flags.Training.define(workdir=None)
training_flags.Loop.define()
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
        _train(strategy, stop)


def _train(strategy, stop):
    workdir = training_run.open_workdir(strategy)

    # Text, tokenizer and segments.
    origin = None
    if FLAGS.initialize_from is not None:
        training_flags.check_inherited_flags()
        origin = trained_model.TrainedOrigin()
        training_flags.set_fine_tuning_rate(origin.flags)
    text = data_flags.prepare_text(origin and origin.model.tokenizer)
    tokenizer, splits = text.tokenizer, text.splits
    segments = training_flags.training_segments(splits["train"])

    # Model and trainer.
    config = origin and origin.model.get_config()
    build_model = functools.partial(_build_model, text, config)
    build = functools.partial(
        training_flags.build_trainer, build_model, strategy, stop
    )
    # This changes flags that `build` and what follows read.
    if FLAGS.minutes is not None and not workdir.is_claimed():
        run_length.choose(strategy, build, segments)
    trainer = build()
    evaluator = Evaluator(
        trainer.model,
        strategy,
        FLAGS.eval_batch_size,
        FLAGS.segment_length,
        stop=stop,
    )
    if origin and not saved_steps(workdir.checkpoints):
        source = origin.restore_weights(trainer.model)
        rate = f"at a learning rate of {FLAGS.learning_rate:g}"
        training_run.log(strategy, f"{source}, {rate}.")
    del origin  # and the memory of its weights

    # Training.
    valid = splits["valid"].head(FLAGS.max_eval_tokens)
    test = splits["test"].head(run_length.max_test_tokens())
    samples = Samples(
        tokenizer,
        prompt=splits["test"].tokens[: FLAGS.segment_length],
        text=valid[0][:_PAGE_TOKENS],
        title=f"{text.corpus.name}, valid",
        segment_length=FLAGS.segment_length,
        max_tokens=FLAGS.max_sample_tokens,
        seed=FLAGS.seed,
    )
    draw_curve = functools.partial(training_run.draw_curve, tokenizer.unit)
    sizes = _bytes_per_token(text, valid[0])
    loop = training_run.start(
        workdir,
        text,
        _describe_step(trainer),
        trainer,
        segments=segments,
        validate=functools.partial(
            evaluator.evaluate, training_flags.held_out_segments(*valid)
        ),
        stop=stop,
        describe=functools.partial(_describe, tokenizer, sizes),
        on_score=(draw_curve, samples.show),
        bytes_per_token=sizes,
    )

    # Scores, sample and export of the best weights.
    if not loop.is_finished():
        step, scores = training_run.train_and_score(
            loop, evaluator.evaluate, training_flags.held_out_segments(*test)
        )
        if is_chief(strategy):
            for name, (tokens, _) in (("valid", valid), ("test", test)):
                scores[name] = report.complete(
                    scores[name], tokenizer, tokens, splits[name].tokens
                )
            draw_curve(loop, scores=scores["valid"])
            samples.finish(loop, step)
            if trainer.model.backbone.has_attention:
                # Copied to one device: that model may be on several.
                export_run(workdir, *workdir.load_model(tokenizer))
            workdir.write_results({"step": step, **scores})
    if is_chief(strategy):
        print(_describe_results(workdir, tokenizer), flush=True)
    wait_for_all(strategy)


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


def _bytes_per_token(text, valid):
    """Returns the means of train and valid, `None` if they are not known."""
    # The first token of a document that resets memory has no score.
    if not text.tokenizer.is_lossless or FLAGS.reset_documents:
        return None
    return {
        "train": mean_bytes(text.splits["train"]),
        "valid": report.bytes_per_token(text.tokenizer, valid),
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


def _describe(tokenizer, sizes, nll, split):
    """Returns words for nats per token of a split."""
    scores = {"nll": nll}
    if sizes:
        scores["bits_per_byte"] = bits_per_token(nll) / sizes[split]
    return report.describe(scores, tokenizer)


def _describe_results(workdir, tokenizer):
    """Returns words for results.json and the other files."""
    results = workdir.read_results()
    return "\n".join(
        [
            *(
                f"{split}: {report.describe(results[split], tokenizer)}"
                for split in ("valid", "test")
            ),
            "--- A sample that continues the beginning of the test text",
            workdir.read_sample(),
            "---",
            training_run.written(
                workdir,
                "learning_curve.png",
                "metrics.jsonl",
                "results.json",
                "sample.txt",
                "surprise.html",
                "events",
                f"export/{results['step']}",
            ),
            "To score it in other ways or to write more text, use `txl "
            "evaluate` and `txl generate`.",
        ]
    )


if __name__ == "__main__":
    running.run(main)
