"""Flags of dynamic evaluation, and functions that build what they describe."""

import functools
import hashlib
import itertools
import json

import tensorflow as tf

from txl_keras.checks import check_number
from txl_keras.data import Segments
from txl_keras.data.corpora.corpus import WHOLE
from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.evaluation.dynamic_evaluator import DynamicEvaluator
from txl_keras.evaluation.dynamic_evaluator import checked_mean_square
from txl_keras.evaluation.dynamic_evaluator import collect_mean_square
from txl_keras.evaluation.report import score
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS
from txl_keras.tensor_files import read_safetensors
from txl_keras.tensor_files import write_safetensors

# Most tokens of valid on which pairs of learning rate and decay are compared.
_SEARCH_TOKENS = 50_000
_LEARNING_RATES = {"sgd": [0.01, 0.03, 0.1], "rms": [3e-6, 1e-5, 3e-5, 1e-4]}


class Dynamic(options.Options):
    """Holds options of dynamic evaluation.

    Evaluation options:
    dynamic: Dynamic evaluation: change the weights after each segment, by its
        gradient (sgd), or by that over the root mean square of gradients on
        train (rms). Default: fixed weights.
    dynamic_learning_rate: Learning rate of --dynamic, or several to try on up
        to 50,000 tokens of valid. Default: 0.01,0.03,0.1 for sgd and
        3e-6,1e-5,3e-5,1e-4 for rms.
    dynamic_decay: Decay towards the original weights in --dynamic=rms, or
        several to try on valid.
    dynamic_segments: Segments, from all of train, whose gradients are the
        statistics of --dynamic=rms.
    """

    dynamic: options.one_of(["sgd", "rms"]) = None
    dynamic_learning_rate: list = None
    dynamic_decay: list = ["0"]
    dynamic_segments: options.integer(1) = 200


def check_dynamic_flags():
    """Checks the flags before anything is loaded."""
    if FLAGS.dynamic is None:
        for name in Dynamic.names():
            expected = f"`{name}` can only be given with --dynamic."
            options.refuse(FLAGS[name].present, expected)
        return
    for rate, decay in _pairs():
        check_number("dynamic_learning_rate", rate, 0)
        check_number("dynamic_decay", decay, 0)
        expected = "`dynamic_decay` must be 0 with --dynamic=sgd."
        options.refuse(FLAGS.dynamic == "sgd" and decay, expected)


def _pairs():
    """Returns the pairs of learning rate and decay to try."""
    rates = _LEARNING_RATES[FLAGS.dynamic]
    if FLAGS.dynamic_learning_rate is not None:
        rates = options.numbers("dynamic_learning_rate", float)
    decays = options.numbers("dynamic_decay", float)
    return [*itertools.product(rates, decays)]


def build_evaluator(model, tokenizer, settings, config, workdir, stop):
    """Builds the `DynamicEvaluator` of the flags, with the best on valid."""
    # Statistics are read from the workdir if an earlier evaluation with the
    # same settings wrote them. Without a run they are those of --corpus. Also
    # returns a dictionary of what identifies the evaluator's rule.
    segments = functools.partial(_segments, config, tokenizer, settings)
    is_rms, mean_square = FLAGS.dynamic == "rms", None
    if is_rms:
        mean_square = _mean_square(model, workdir, segments("train"), settings)
    pairs = _pairs()
    evaluator = DynamicEvaluator(
        model,
        pairs[0][0],
        mean_square,
        pairs[0][1],
        batch_size=settings["batch_size"],
        segment_length=settings["segment_length"],
        stop=stop,
    )
    if len(pairs) > 1:
        _search(evaluator, segments("valid"), pairs, tokenizer)
    found = {"rule": FLAGS.dynamic, "learning_rate": evaluator.learning_rate}
    if is_rms:
        found["decay"] = evaluator.decay
        found["segments"] = FLAGS.dynamic_segments
    return evaluator, found


def _segments(config, tokenizer, settings, split):
    """Returns the segments of a split of the text of the run, if any."""
    run_corpus = config["corpus"]
    options.refuse(
        not run_corpus and FLAGS.split == WHOLE,
        "`split` must be valid or test with --preset and --dynamic, unless it "
        "is sgd with one --dynamic_learning_rate: statistics are those of the "
        "train split of --corpus, and rates are compared on valid.",
    )
    names = ("data_dir",) if run_corpus else None
    text = data_flags.corpus_options(run_corpus, names)
    corpus, prepared = data_flags.prepare_split(text, tokenizer, split)
    if run_corpus:
        data_flags.check_run_text(
            prepared, config["data"].get(split), corpus, FLAGS.workdir,
            "Bring it back: --dynamic reads it for statistics or to compare "
            "rates",
        )  # fmt: skip
    limit = None
    if split == "valid":
        limit = min(_SEARCH_TOKENS, FLAGS.max_eval_tokens or _SEARCH_TOKENS)
    tokens, documents = prepared.head(limit)
    return Segments(
        tokens,
        settings["batch_size"],
        settings["segment_length"],
        drop_remainder=split == "train",
        documents=documents,
        reset_documents=settings["reset_documents"],
    )


def _mean_square(model, workdir, train, settings):
    """Collects the statistics, or reads those of the same settings."""
    facts = {**settings, "dynamic_segments": FLAGS.dynamic_segments}
    # The length of the scored text does not matter.
    facts.pop("max_eval_tokens")
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    name = f"mean_square_{digest.hexdigest()[:12]}.safetensors"
    path = workdir and workdir.file(name)
    if not path or not tf.io.gfile.exists(path):
        print(f"Collecting statistics of {FLAGS.dynamic_segments} segments.")
        mean_square = collect_mean_square(
            model, train, min(FLAGS.dynamic_segments, len(train))
        )
        if not path:
            return mean_square
        with renamed_when_complete(path) as unfinished:
            write_safetensors(mean_square, unfinished)
    print(f"Statistics of gradients: {name}")
    try:
        return checked_mean_square(read_safetensors(path), model)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged, or of another model. Remove it: the same "
            f"command computes it again. ({error})"
        ) from error


def _search(evaluator, valid, pairs, tokenizer):
    """Gives the evaluator the best pair of learning rate and decay."""
    losses = {}
    for pair in pairs:
        evaluator.learning_rate, evaluator.decay = pair
        try:
            scores = evaluator.evaluate(valid)
        except FloatingPointError:
            continue  # too high a learning rate
        losses[pair] = scores["nll"]
        print(
            f"valid, learning rate {pair[0]:g}, decay {pair[1]:g}: "
            f"{score(scores['nll'], tokenizer)}",
            flush=True,
        )
    if not losses:
        raise FloatingPointError(
            "The weights are not finite at any `dynamic_learning_rate`. "
            f"Received: {', '.join(f'{rate:g}' for rate, _ in pairs)}"
        )
    best = min(losses, key=losses.get)
    rates = sorted({rate for rate, _ in pairs})
    if len(rates) > 1 and best[0] in (rates[0], rates[-1]):
        which = "lowest" if best[0] == rates[0] else "highest"
        print(
            f"The {which} learning rate was the best: another beyond it may "
            "be better (--dynamic_learning_rate)."
        )
    evaluator.learning_rate, evaluator.decay = best
