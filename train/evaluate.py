r"""Measures the bits per character and the perplexity of a run or a preset.

    txl evaluate --workdir=runs/quickstart --split=test
    txl evaluate --workdir=runs/enwik8_base \
        --flagfile=evaluation/enwik8_base
    txl evaluate --workdir=runs/quickstart --corpus=my_text.txt \
        --split=all --token_nll=nats.npy --position_curve
    txl evaluate --workdir=runs/vanilla --stride=1 \
        --max_eval_tokens=100000
    txl evaluate --preset=my_model --corpus=my_text.txt --split=all

Every token of the split except the first is scored exactly once, with any batch
size. Each row reads a part of the split and starts with an empty memory, so its
first tokens are scored slightly worse, unless it begins earlier: see --warmup.

A model without memory has little context at the start of each segment. With
--stride=K it predicts K tokens per window of segment_length tokens, which takes
segment_length / K times as long. --stride=1 is the evaluation of Al-Rfou et al.

Writes to the workdir: evaluation_SPLIT.json, a list with one result for each
checkpoint, text and settings, the latest last; with --position_curve a picture;
with --html a web page that shows how surprising each token is. The score of a
--preset is only printed. --token_nll writes the nats of every token.
"""

import os
import sys

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.data import Segments
from txl_keras.data import SlidingWindows
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import WHOLE
from txl_keras.data.corpora.files import check_can_write
from txl_keras.data.corpora.files import write_text
from txl_keras.data.corpora.files import written_when_complete
from txl_keras.evaluation import evaluator
from txl_keras.evaluation import report
from txl_keras.evaluation.plots import plot_losses
from txl_keras.extending import registered
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts.options import FLAGS
from txl_keras.training.progress import progress_bar
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest
from txl_keras.workdir import write_json


class Evaluate(options.Options, WHOLE=WHOLE):
    """Holds the options of this command.

    stride: Score with a sliding window of segment_length tokens that advances
        by this many tokens and scores only these; needs memory_length=0.
        Default: no sliding window.
    warmup: Text that each row reads before its own part, to fill its memory.
        memory: as many segments as memory holds; exact: all segments that
        memory can depend on, which gives the scores of --batch_size=1.
    token_nll: .npy file to write the nats of every token to, as float32 in the
        order of the text; NaN for a token without a score. Default: none.
    position_curve: Add scores by the position of a token in its document, and
        draw them to WORKDIR/evaluation_SPLIT_positions.png.
    html: Write WORKDIR/evaluation_SPLIT.html, a web page of the first tokens of
        the split, up to 5000. Each token is shaded by its bits with memory and
        without.

    Data options:
    split: Split of the text to score; {WHOLE} is the whole --corpus, not split.
    segment_length: Tokens per segment. Default: as in training, or 128 for a
        --preset.
    batch_size: Rows per batch. Default: 16, unless another option sets it.

    Evaluation options:
    max_eval_tokens: Score only this many tokens from the start of the split.
        Default: all.
    """

    stride: options.integer(1) = None
    warmup: options.one_of(["none", "memory", "exact"]) = "none"
    token_nll: options.path = None
    position_curve: bool = False
    html: bool = False
    split: options.one_of([*SPLITS, WHOLE]) = "test"
    segment_length: options.integer(1) = None
    batch_size: options.integer(1) = None
    max_eval_tokens: options.integer(2) = None


Evaluate.define()
trained_model.TrainedModel.define()
data_flags.Corpus.define()  # by default the text of the run
model_flags.define_evaluation_flags()
_EVALUATORS = registered("evaluator")
for _options in _EVALUATORS.values():
    _options.define()

# Most tokens of a page; a longer page would be slow to scroll.
_MAX_PAGE_TOKENS = 5000
# Settings of a preset, which has no run's config.json.
_NO_RUN = {"flags": {"segment_length": 128}, "corpus": {}, "data": {}}


def main(_):
    chosen = _chosen_evaluator()
    FLAGS.batch_size = FLAGS.batch_size or getattr(chosen, "batch_size", 16)
    workdir = trained_model.given_workdir()
    _check_flags()
    with StopRequest() as stop:
        _evaluate(workdir, chosen, stop)


def _evaluate(workdir, chosen, stop):
    config = _NO_RUN
    if workdir is not None:
        config = workdir.read_config()
        # Check that the scores can be written before they are computed.
        check_can_write("workdir", workdir.path)
        workdir.read_evaluations(FLAGS.split)
    model, checkpoint = trained_model.load(workdir, **model_flags.given())
    tokenizer = model.tokenizer
    name, text, split = _prepare_text(config, tokenizer)
    tokens, documents = split.head(FLAGS.max_eval_tokens)
    # Everything that distinguishes one result from another.
    settings = {
        "split": FLAGS.split,
        **checkpoint,
        **text,
        **_settings(model.backbone, config["flags"], len(tokens)),
        "evaluator": None,
    }
    segments = _segments(tokens, documents, settings)
    if chosen is not None:
        scorer, settings["evaluator"] = chosen.build(
            model, settings, config, workdir, stop
        )
    else:
        strategy = tf.distribute.get_strategy()
        sizes = segments.batch_size, segments.segment_length
        scorer = evaluator.Evaluator(model, strategy, *sizes, stop=stop)
    # The evaluator needs it to find scores that are not finite.
    nll = np.empty(len(tokens), np.float32)
    with stop.deferred(), progress_bar(len(segments), "segment") as show:
        scores = scorer.evaluate(segments, None, show, nll)
    if scores is None:
        print("Stopped; run the same command again.")
        sys.exit(EXIT_CODE)
    scores = report.complete(scores, tokenizer, tokens, split.tokens)
    print(f"{name}, {FLAGS.split}: {report.describe(scores, tokenizer)}")
    if FLAGS.token_nll is not None:
        with written_when_complete(FLAGS.token_nll) as file:
            np.save(file, nll)
        print(f"Written to {FLAGS.token_nll}")
    if workdir is None:
        return
    path = workdir.file(f"evaluation_{FLAGS.split}")
    if FLAGS.position_curve:
        scores["position_curve"] = report.position_curve(nll, documents)
    # Replaces an earlier result with the same settings, but keeps its curve.
    # The list is read now, because another process may have added a result
    # meanwhile, and written before steps that may fail.
    others, replaced = [], {}
    for result in workdir.read_evaluations(FLAGS.split):
        if settings.items() <= result.items():
            replaced = result
        else:
            others.append(result)
    result = {**replaced, **settings, **scores}
    write_json([*others, result], f"{path}.json")
    print(f"Written to {path}.json")
    if scorer.backup is not None:
        scorer.backup.remove()
    if FLAGS.position_curve:
        curve = scores["position_curve"]
        starts = [bucket["start"] for bucket in curve]
        losses = {FLAGS.split: (starts, [bucket["nll"] for bucket in curve])}
        label = f"position of the {tokenizer.unit} in its document, from"
        picture = f"{path}_positions.png"
        plot_losses(losses, picture, label, tokenizer.unit, starts)
        print(f"Written to {picture}")
    if FLAGS.html:
        reader = registered("page")["surprise"](
            model, tokenizer, settings["segment_length"]
        )
        data = reader.read(tokens[:_MAX_PAGE_TOKENS])
        write_text(reader.page(f"{name}, {FLAGS.split}", data), f"{path}.html")
        print(f"Written to {path}.html")


def _chosen_evaluator():
    """Returns the options of the chosen evaluator, or `None`; checks them."""
    chosen = [name for name in _EVALUATORS if FLAGS[name].value]
    options.refuse(len(chosen) > 1, f"Only one of {chosen} can be given.")
    for name, option in _EVALUATORS.items():
        for flag in option.names():
            options.refuse(
                FLAGS[flag].present and name not in chosen,
                f"`{flag}` can only be given with --{name}.",
            )
    if not chosen:
        return None
    options.refuse(
        FLAGS.html,
        f"`html` must be left out with --{chosen[0]}: the page "
        "shows what surprises the model alone.",
    )
    _EVALUATORS[chosen[0]].check()
    return _EVALUATORS[chosen[0]]


def _check_flags():
    """Checks flags that exclude each other, before anything is loaded."""
    if FLAGS.token_nll is not None:
        options.refuse(
            not FLAGS.token_nll.endswith(".npy"),
            "`token_nll` must be the path of a .npy file.",
        )
        data_flags.check_writable("token_nll", FLAGS.token_nll)
    options.refuse(
        FLAGS.preset is not None and (FLAGS.html or FLAGS.position_curve),
        "`html` and `position_curve` must be left out with --preset: they are "
        "written to the folder of a run.",
    )
    options.refuse(
        FLAGS.stride is not None and FLAGS.warmup != "none",
        "`warmup` must be left out with --stride: its windows have no memory.",
    )


def _prepare_text(config, tokenizer):
    """Prepares the split to score."""
    # Returns the name of the text, a dictionary that identifies it (with None
    # for the text of the run), and the `PreparedSplit`.
    run_corpus = config["corpus"]
    source = data_flags.corpus_options(run_corpus)
    is_whole = FLAGS.split == WHOLE
    if is_whole and run_corpus.get("corpus"):
        paths = source["corpus"], run_corpus["corpus"]
        options.refuse(
            len(set(map(os.path.realpath, paths))) == 1,
            f"`split` {WHOLE} is for text that the model was not trained on; "
            f"{paths[0]} is the text of the run.",
        )
    corpus, split = data_flags.prepare_split(
        source, tokenizer, FLAGS.split, whole=is_whole
    )
    expected = config["data"].get(FLAGS.split)
    if split.fingerprint() == expected:  # even if the files were moved
        text = {"corpus": None, "fingerprint": None}
        return f"{corpus.name} (the text of the run)", text, split
    # The other options are locations of files and do not identify a text.
    names = "corpus", "document_separator", "text_key"
    if expected and all(source[n] == run_corpus.get(n) for n in names):
        data_flags.check_run_text(
            split, expected, corpus, FLAGS.workdir,
            "Bring it back, or score another text with --corpus",
        )  # fmt: skip
    text = {"corpus": source["corpus"], "fingerprint": split.fingerprint()}
    other = " (not the text of the run)" if run_corpus else ""
    return f"{corpus.name}{other}", text, split


def _settings(backbone, run_flags, num_tokens):
    """Returns the settings of the evaluation, to store with its result."""
    segment_length = FLAGS.segment_length or run_flags.get("segment_length")
    check_integer("segment_length", segment_length, 1)
    if FLAGS.stride:
        evaluator.check_slides(backbone, backbone.memory_length)
    warmup, resets = 0, run_flags.get("reset_documents", False)
    if FLAGS.warmup == "memory":
        warmup = evaluator.segments_in_memory(backbone, segment_length)
    elif FLAGS.warmup == "exact":
        warmup = evaluator.warmup_segments(backbone, segment_length)
    per_row = num_tokens // FLAGS.batch_size
    is_short = per_row < backbone.memory_length and FLAGS.batch_size > 1
    if is_short and not (warmup or resets):
        print(
            f"Each of the {FLAGS.batch_size} rows has about {per_row:,} tokens "
            "and starts with an empty memory, which holds "
            f"{backbone.memory_length:,}: the scores are worse than with "
            "--warmup=exact or --batch_size=1.",
            file=sys.stderr,
        )
    return {
        "max_eval_tokens": FLAGS.max_eval_tokens,
        "reset_documents": resets,
        "batch_size": FLAGS.batch_size,
        "segment_length": segment_length,
        "stride": FLAGS.stride,
        "warmup": FLAGS.warmup,
        "warmup_segments": warmup,
        "memory_length": backbone.memory_length,
        **{x: getattr(backbone, x) for x in backbone.evaluation_arguments},
    }


def _segments(tokens, documents, settings):
    sizes = settings["batch_size"], settings["segment_length"]
    resets = {
        "documents": documents,
        "reset_documents": settings["reset_documents"],
    }
    if settings["stride"]:
        return SlidingWindows(tokens, *sizes, settings["stride"], **resets)
    return Segments(
        tokens,
        *sizes,
        drop_remainder=False,
        warmup_segments=settings["warmup_segments"],
        **resets,
    )


if __name__ == "__main__":
    running.run(main)
