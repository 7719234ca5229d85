r"""Trains a Transformer-XL language model on text.

    txl train --flagfile=quickstart
    txl train --workdir=runs/mine --corpus=path/to/text_or_folder
    txl train --flagfile=enwik8_base \
        --workdir=gs://BUCKET/enwik8 --data_dir=gs://BUCKET/data --tpu=local
    txl train --flagfile=enwik8_base \
        --flagfile=v2_8 --compile_only

Run the same command again to resume a run that was stopped. On SIGTERM, SIGHUP
(a closed terminal) and Ctrl-C, training finishes the current steps, saves a
checkpoint and exits with code 75.
"""

import functools

import txl_keras.scripts.quiet  # noqa: F401

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
from txl_keras.scripts.options import FLAGS
from txl_keras.scripts.samples import Samples
from txl_keras.scripts.samples import legible_passage
from txl_keras.training.progress import printable
from txl_keras.training.strategy import is_chief
from txl_keras.training.utilization import training_bytes

# Tokens of valid to show in surprise.html.
_PAGE_TOKENS = 1000

data_flags.Corpus.define()
data_flags.Tokenizer.define()
model_flags.define_model_flags()
trained_model.OriginOption.define()
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
    training_run.run(_train)


def _train(workdir, strategy, stop):
    # Text, tokenizer and segments.
    origin = trained_model.given_origin()
    if origin:
        training_flags.set_fine_tuning_rate(origin.flags)
    text = data_flags.prepare_text(
        origin.tokenizer if origin else run_length.kept_tokenizer(workdir),
        sample_bytes=run_length.sample_bytes(strategy),
    )
    tokenizer, splits = text.tokenizer, text.splits
    is_new = not workdir.is_claimed()
    if FLAGS.minutes is not None and is_new:
        run_length.choose_model(strategy, len(splits["train"].tokens))
    segments = training_flags.training_segments(splits["train"])

    # Model and trainer.
    build = functools.partial(
        training_flags.build_trainer,
        functools.partial(_build_model, text, origin),
        strategy,
    )
    if FLAGS.minutes is not None and is_new:
        # This changes flags that `build` and the code below read.
        run_length.choose(strategy, build, segments)
    trainer = build()
    evaluator = Evaluator(
        trainer.model,
        strategy,
        FLAGS.eval_batch_size,
        FLAGS.segment_length,
        stop=stop,
    )
    if origin and is_new:
        rate = f"at a learning rate of {FLAGS.learning_rate:g}"
        training_run.log(strategy, f"{origin.description}, {rate}.")

    # Training.
    valid = splits["valid"].head(FLAGS.max_eval_tokens)
    test = splits["test"].head(run_length.max_test_tokens())
    prompt = legible_passage(
        splits["test"].tokens, tokenizer, FLAGS.segment_length
    )
    samples = Samples(
        tokenizer,
        prompt=prompt,
        text=valid[0][:_PAGE_TOKENS],
        title=f"{text.corpus.name}, valid",
        segment_length=FLAGS.segment_length,
        max_tokens=FLAGS.max_sample_tokens,
        seed=FLAGS.seed,
    )
    sizes = _bytes_per_token(text, valid[0])
    loop = training_run.start(
        workdir,
        text,
        _describe_step(trainer),
        tokenizer.unit,
        trainer,
        segments=segments,
        validate=functools.partial(
            evaluator.evaluate, training_flags.held_out_segments(*valid)
        ),
        stop=stop,
        describe=functools.partial(_describe, tokenizer, sizes),
        on_score=(samples.show,),
        bytes_per_token=sizes,
        scores_start=origin is not None,
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
            training_run.draw_curve(tokenizer.unit, loop, None, scores["valid"])
            samples.finish(loop, step)
            if trainer.model.backbone.has_attention:
                # Loaded on one device: the trained model may be on several.
                best = workdir.load_model(tokenizer)
                trained_model.export_run(workdir, *best)
            workdir.write_results({"step": step, **scores})
    if is_chief(strategy):
        _print_results(workdir, tokenizer, prompt)


def _build_model(text, origin):
    """Builds the model of the flags or of an `Origin`."""
    model = model_flags.build_model(
        text.tokenizer.vocabulary_size,
        text.splits["train"].tokens,
        training_flags.dtype_policy(),
        origin,
    )
    model.backbone.check_positions(FLAGS.segment_length)
    return model


def _bytes_per_token(text, valid):
    """Returns the means of train and valid, `None` if they are unknown."""
    # The first token of a document that resets memory has no score.
    if not text.tokenizer.is_lossless or FLAGS.reset_documents:
        return None
    train = text.splits["train"].metadata
    return {
        "train": train["num_bytes"] / train["num_tokens"],
        "valid": report.bytes_per_token(text.tokenizer, valid),
    }


def _describe_step(trainer):
    """Describes a step by its tokens and its memory on the device."""
    parts = training_bytes(
        trainer.model,
        trainer.optimizer,
        replica_batch_size(FLAGS.batch_size, trainer.strategy),
        FLAGS.accumulate_steps,
    )
    mebibytes = ", ".join(
        f"{name} {size / 2**20:,.0f}" for name, size in parts.items()
    )
    step = f"{FLAGS.batch_size * FLAGS.segment_length:,} tokens per step"
    if FLAGS.accumulate_steps > 1:
        step += f" in {FLAGS.accumulate_steps} parts"
    return f"{step}; MiB per device: {mebibytes}"


def _describe(tokenizer, sizes, nll, split):
    """Formats nats per token of a split for the output."""
    scores = {"nll": nll}
    if sizes:
        scores["bits_per_byte"] = bits_per_token(nll) / sizes[split]
    return report.describe(scores, tokenizer)


def _print_results(workdir, tokenizer, prompt):
    """Prints results.json, the sample, and the names of all files."""
    results = workdir.read_results()
    for split in ("valid", "test"):
        print(f"{split}: {report.describe(results[split], tokenizer)}")
    if sample := workdir.read_sample():
        passage = printable(tokenizer.decode(prompt))
        print("--- A passage of the test text", passage, sep="\n")
        print(
            "--- How the model continues it", printable(sample), "---", sep="\n"
        )
    print(
        training_run.written(workdir),
        "To score it in other ways or to write more text, use `txl evaluate` "
        "and `txl generate`.",
        sep="\n",
        flush=True,
    )


if __name__ == "__main__":
    running.run(main)
