"""Options of dynamic evaluation, and the evaluator that they describe."""

import itertools

from txl_keras.checks import check_number
from txl_keras.data import Segments
from txl_keras.data.corpora.corpus import WHOLE
from txl_keras.evaluation.backup import Backup
from txl_keras.evaluation.report import describe
from txl_keras.extensions.dynamic_evaluation.evaluator import DynamicEvaluator
from txl_keras.extensions.dynamic_evaluation.evaluator import (
    collect_mean_square,
)
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS

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

    batch_size = 1  # by default

    @classmethod
    def check(cls):
        """Checks the flags before anything is loaded."""
        users = {"dynamic_learning_rate": ["sgd", "rms"]}
        users |= dict.fromkeys(["dynamic_decay", "dynamic_segments"], ["rms"])
        options.check_used("dynamic", users)
        if FLAGS.dynamic:
            for rate, decay in _pairs():
                check_number("dynamic_learning_rate", rate, 0)
                check_number("dynamic_decay", decay, 0)
            expected = "`stride` must be left out with --dynamic."
            options.refuse(FLAGS.stride is not None, expected)

    @classmethod
    def build(cls, model, settings, config, workdir, stop):
        """Returns an evaluator, with the best rates on valid, and facts."""

        def segments(split):
            return _segments(split, config, model.tokenizer, settings)

        pairs, mean_square = _pairs(), None
        if FLAGS.dynamic == "rms":
            count, train = FLAGS.dynamic_segments, segments("train")
            print(f"Collecting statistics of {count} segments.")
            count = min(count, len(train))
            mean_square = collect_mean_square(model, train, count)
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
            _search(evaluator, segments("valid"), pairs, model.tokenizer)
        facts = {
            "dynamic": FLAGS.dynamic,
            "learning_rate": evaluator.learning_rate,
            "decay": evaluator.decay,
            "segments": FLAGS.dynamic_segments,
        }
        if workdir is not None:
            path = workdir.file(f"evaluation_{FLAGS.split}_state")
            evaluator.backup = Backup(path, {**settings, **facts})
        return evaluator, facts


def _pairs():
    """Returns the pairs of learning rate and decay to try."""
    rates = _LEARNING_RATES[FLAGS.dynamic]
    if FLAGS.dynamic_learning_rate is not None:
        rates = options.numbers("dynamic_learning_rate", float)
    decays = options.numbers("dynamic_decay", float)
    return [*itertools.product(rates, decays)]


def _segments(split, config, tokenizer, settings):
    """Returns segments of a split of the run's text, or else of --corpus."""
    run_corpus, limit = config["corpus"], None
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
        expected = config["data"].get(split)
        data_flags.check_run_text(prepared, expected, corpus, FLAGS.workdir)
    if split == "valid":
        limit = min(_SEARCH_TOKENS, FLAGS.max_eval_tokens or _SEARCH_TOKENS)
    tokens, documents = prepared.head(limit)
    return Segments(
        tokens,
        settings["batch_size"],
        settings["segment_length"],
        drop_remainder=False,
        documents=documents,
        reset_documents=settings["reset_documents"],
    )


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
            f"{describe({'nll': scores['nll']}, tokenizer)}",
            flush=True,
        )
    if not losses:
        raise FloatingPointError(
            "The weights are not finite at any `dynamic_learning_rate`."
        )
    evaluator.learning_rate, evaluator.decay = min(losses, key=losses.get)
