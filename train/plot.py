r"""Draws pictures that compare runs.

    txl plot --picture=learning_curves \
        --workdirs=runs/memory,runs/no_memory --output=runs/curves.png
    txl plot --picture=positions --labels=Transformer-XL,vanilla \
        --workdirs=runs/memory,runs/no_memory --output=runs/positions.svg
    txl plot --picture=attention --workdirs=runs/memory \
        --segment_length=24 --memory_length=24 --layers=0,3 --heads=0,1 \
        --output=runs/attention.png
    txl plot --picture=recl --workdirs=runs/wt103_base,runs/wt103_shaw \
        --num_positions=5000 --output=runs/recl.png
    txl plot --picture=recl --numbers=runs/recl.json --output=runs/recl.pdf
    txl plot --picture=learning_curves --labels=memory,memory,none,none \
        --workdirs=runs/a0,runs/a1,runs/b0,runs/b1 --output=runs/seeds.png

All pictures except learning_curves use the text of the runs, or --corpus:

learning_curves  training and validation loss by tokens read. Runs of one label
                 are seeds, drawn in one colour; prints means and deviations
context_losses   loss of --num_positions tokens, each predicted from exactly c
                 tokens, for each c of --context_lengths
positions        loss by position in the segment, with a band of two standard
                 errors: context fragmentation
attention        attention maps of the segment in the middle of the text
recl             relative effective context lengths, from the same losses:
                 `effective_context_lengths` of `txl_keras.evaluation`

The runs must share one tokenizer, or for learning_curves one unit of tokens.
The numbers in a picture, except attention maps, are written beside it as .json,
with losses in nats. --numbers draws this file again, in another file type;
several files of learning_curves become one picture. context_losses and recl can
be stopped: the same command resumes. For each model they read num_positions
times the sum of the context lengths in tokens.
"""

import os

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf

from txl_keras import evaluation
from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.data import Segments
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.evaluation import plots
from txl_keras.evaluation import recl
from txl_keras.evaluation import report
from txl_keras.evaluation.attention_maps import check_attends
from txl_keras.evaluation.backup import Backup
from txl_keras.evaluation.evaluator import segments_in_memory
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import check_fields
from txl_keras.json_files import read_json
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts.options import FLAGS
from txl_keras.training.progress import progress_bar
from txl_keras.workdir import Workdir
from txl_keras.workdir import write_json

_PICTURES = (
    "learning_curves", "context_losses", "positions", "attention", "recl",
)  # fmt: skip


class Plot(options.Options, formats=", ".join(plots.FORMATS)):
    """Holds the options of this command.

    picture: Kind of picture to draw; `txl plot --help` describes each kind.
    output: Picture file to write, of type {formats}.
    workdirs: Folders of the runs to compare.
    labels: Names of the runs in the picture, in the order of --workdirs; in
        picture learning_curves equal names are seeds. Default: folder names.
    numbers: JSON file of an earlier picture, to draw it again instead of
        measuring --workdirs; picture learning_curves takes several files.
    context_lengths: Context lengths to compare, in tokens; equally spaced for
        picture recl. Default: 1, 2, 4, ..., 512; for recl 100, 200, ..., 1000.
    num_positions: Number of tokens to predict from each context length.
    top_r: Shares of positions to average over in picture recl, hardest first.
    layers: Layers to show in picture attention, from 0. Default: all.
    heads: Heads to show in picture attention, from 0. Default: all.

    Data options:
    split: Split of the text to read.
    segment_length: Tokens per segment. Default: as in training.
    batch_size: Rows per batch.

    Evaluation options:
    max_eval_tokens: Read only this many tokens from the start of the split, for
        the picture positions. Default: all.
    """

    picture: options.one_of(_PICTURES) = options.REQUIRED
    output: options.path = options.REQUIRED
    workdirs: list = None
    labels: list = None
    numbers: list = None
    context_lengths: list = None
    num_positions: options.integer(1) = 1000
    top_r: list = ["0.1", "0.5", "1"]
    layers: list = None
    heads: list = None
    split: options.one_of(SPLITS) = "test"
    segment_length: options.integer(1) = None
    batch_size: options.integer(1) = 16
    max_eval_tokens: options.integer(2) = None


# Values of --picture for flags that only some pictures use.
_OF_LOSSES = ("context_losses", "recl")
_ONLY_FOR = {
    **dict.fromkeys(("context_lengths", "num_positions"), _OF_LOSSES),
    **dict.fromkeys(("layers", "heads"), ("attention",)),
    "top_r": ("recl",),
    "max_eval_tokens": ("positions",),
    "batch_size": (*_OF_LOSSES, "positions"),
    **dict.fromkeys(
        ("split", "corpus", "segment_length", "memory_length"), _PICTURES[1:]
    ),
}

Plot.define()
data_flags.Corpus.define()  # by default the text of the runs
model_flags.Model.define("memory_length", note=" Default: as in training.")


def main(_):
    endings = tuple(f".{x}" for x in plots.FORMATS)
    expected = f"`output` must end with {' or '.join(endings)}."
    options.refuse(not FLAGS.output.endswith(endings), expected)
    data_flags.check_writable("output", FLAGS.output)
    options.refuse(
        bool(FLAGS.numbers) == bool(FLAGS.workdirs),
        "Either `workdirs`, one or more runs, or `numbers` must be given.",
    )
    options.check_used("picture", _ONLY_FOR)
    if FLAGS.numbers:
        given = [f"`{name}`" for name in _ONLY_FOR if FLAGS[name].present]
        options.refuse(
            given,
            f"{', '.join(given)} must be left out with --numbers, which are "
            "drawn as they are.",
        )
        numbers = _read()
    else:
        is_curve = FLAGS.picture == "learning_curves"
        path = f"{_stem()}.json"
        is_written = FLAGS.picture != "attention"  # maps are too large for JSON
        if is_written and tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, "rb") as file:
                is_ours = b'"picture"' in file.read(20)
            options.refuse(
                not is_ours,
                f"`output` must not be {FLAGS.output}: its numbers would "
                f"replace {path}, which is not a picture's.",
            )
        numbers = _learning_curves() if is_curve else _measure()
        if is_written:
            write_json({"picture": FLAGS.picture, **numbers}, path)
            print(f"Written to {path}")
            if FLAGS.picture in _OF_LOSSES:
                Backup(f"{_stem()}_state", None).remove()
    try:
        _DRAW[FLAGS.picture](numbers, FLAGS.output)
    except (LookupError, TypeError, ValueError) as error:
        if not FLAGS.numbers:
            raise
        raise ValueError(
            f"`numbers` must be files that `txl plot --picture={FLAGS.picture}`"
            f" wrote. Received: {', '.join(FLAGS.numbers)} ({error!r})"
        ) from error
    print(f"Written to {FLAGS.output}")


def _stem():
    return os.path.splitext(FLAGS.output)[0]


def _read():
    """Reads the files `--numbers`; several files become one picture."""
    pictures = [FLAGS.picture]
    if FLAGS.picture == "context_losses":
        pictures.append("recl")  # these files hold the same losses
    options.refuse(
        len(FLAGS.numbers) > 1 and FLAGS.picture != "learning_curves",
        "`numbers` must be one file, or --picture=learning_curves.",
    )
    options.refuse(
        FLAGS.labels, "`labels` must not be given: `numbers` has its own."
    )
    files = [
        read_json(os.path.expanduser(path), max_bytes=MAX_VOCABULARY_BYTES)
        for path in FLAGS.numbers
    ]
    found = {numbers.get("picture") for numbers in files}
    options.refuse(
        not found <= {*pictures},
        f"`numbers` must be files of a picture of {' or '.join(pictures)}, "
        f"not of {', '.join(sorted(map(str, found)))}.",
    )
    for path, numbers in zip(FLAGS.numbers, files, strict=True):
        check_fields(numbers, {"unit": "a string", "models": "a list"}, path)
        for model in numbers["models"]:
            check_fields(model, {"label": "a string"}, f"A model of {path}")
    units = [numbers["unit"] for numbers in files]
    _check_equal("numbers", "unit of tokens", units)
    models = [model for numbers in files for model in numbers["models"]]
    return {**files[0], "models": models}


def _check_equal(name, kind, facts):
    """Raises `ValueError` unless the runs or files of a flag share a fact."""
    if len(set(facts)) > 1:
        received = map("{} of {}".format, FLAGS[name].value, facts)
        raise ValueError(
            f"`{name}` must have one {kind}, so that their losses can be "
            f"compared. Received: {', '.join(received)}"
        )


def _labels():
    """Returns names of runs: `--labels`, folder names, or else paths."""
    paths = FLAGS.workdirs
    folders = [os.path.basename(path.rstrip("/")) for path in paths]
    found = FLAGS.labels or folders
    options.refuse(
        len(found) != len(paths), f"`labels` must be {len(paths)}, one per run."
    )
    options.refuse(
        FLAGS.labels
        and FLAGS.picture != "learning_curves"
        and len(set(found)) < len(found),
        "`labels` must differ: only in learning_curves are runs of one label "
        "seeds of one model.",
    )
    is_clear = FLAGS.labels or len(set(found)) == len(found)
    return found if is_clear else paths


# === Learning curves ===


def _learning_curves():
    """Reads the losses of the runs, which must have one unit of tokens."""
    units, models = [], []
    for label, path in zip(_labels(), FLAGS.workdirs, strict=True):
        workdir = Workdir(path)
        metrics, config = workdir.read_metrics(), workdir.read_config()
        if not metrics:
            raise ValueError(
                "`workdirs` must be runs that were trained here. Received: "
                f"{path}, without {workdir.metrics}"
            )
        unit, flags = workdir.load_tokenizer().unit, config["flags"]
        if config["class_name"] == "XLNetPermutationLM":
            unit = f"predicted {unit}"  # not comparable with left-to-right
        # Of its own text; those of earlier weights are not of this curve.
        step = workdir.best_step()
        scores = [
            score
            for score in workdir.read_evaluations("test")
            if score.get("corpus") is None
            and score.get("step") == step
            and not score.get("evaluator")  # such as dynamic evaluation
        ]
        if workdir.is_finished():
            scores = [workdir.read_results()["test"], *scores]
        # The score of the most tokens, latest first; the training's last.
        test = max(reversed(scores), key=lambda x: x["num_tokens"], default={})
        names = {"nll", "num_tokens", "segment_length", "memory_length"}
        units.append(unit)
        models.append(
            {
                "label": label,
                "workdir": path,
                "seed": flags.get("seed"),
                "tokens_per_step": flags["batch_size"]
                * flags["segment_length"],
                **report.learning_curve(metrics),
                "test": {k: x for k, x in test.items() if k in names},
            }
        )
    _check_equal("workdirs", "unit of tokens", units)
    return {"unit": units[0], "models": models}


def _draw_learning_curves(numbers, path):
    plots.plot_learning_curves(numbers, path)
    # The last loss of valid, and of test, with the spread over runs.
    models = numbers["models"]
    name, convert = report.measure(numbers["unit"])
    labels = [*dict.fromkeys(model["label"] for model in models)]
    width = max(len("model"), *map(len, labels))
    print(f"{'model':{width}} {'runs':>4} {'valid':>14} {'test':>14}  {name}")
    for label in labels:
        runs = [model for model in models if model["label"] == label]
        valid = [convert(x) for run in runs for x in run["valid"]["nll"][-1:]]
        scores = [run["test"] for run in runs if run.get("test")]
        test = [convert(score["nll"]) for score in scores]
        cells = f"{_spread(valid):>14} {_spread(test):>14}"
        names = "num_tokens", "segment_length", "memory_length"
        if len({tuple(map(x.get, names)) for x in scores}) > 1:
            cells += f"  scored with different {', '.join(names)}"
        print(f"{label:{width}} {len(runs):>4} {cells}")


def _spread(values):
    """Formats the mean and the standard deviation of a sample."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else "-"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


# === Losses and attention, measured on a text ===


def _measure():
    """Measures the runs on a text."""
    lengths = _context_lengths()
    # All runs are opened first, so that errors come before any long
    # computation.
    runs, text, split = _open_runs()
    models = [facts for _, facts in runs]
    numbers = {
        **text,
        "context_lengths": lengths,
        "max_eval_tokens": FLAGS.max_eval_tokens,
    }
    if FLAGS.picture in _OF_LOSSES:
        _losses(runs, numbers, split.tokens)
    for model, facts in runs:
        if FLAGS.picture == "positions":
            facts["positions"] = _positions(model, facts, split)
        elif FLAGS.picture == "attention":
            facts |= _attention(model, facts, split.tokens)
    return {**numbers, "models": models}


def _context_lengths():
    """Returns `--context_lengths`, and checks the other flags of recl."""
    is_recl = FLAGS.picture == "recl"
    lengths = [2**i for i in range(10)]
    if is_recl:
        lengths = [*range(100, 1001, 100)]
    if FLAGS.context_lengths is not None:
        lengths = sorted(options.numbers("context_lengths", int))
    if is_recl:
        recl.check_context_lengths(lengths)
        for share in options.numbers("top_r", float):
            check_number("top_r", share, 0, 1, exclusive=True)
        options.refuse(
            len(FLAGS.workdirs) < 2,
            "`workdirs` must be two or more runs: the length is relative to "
            "the best of the group.",
        )
    return lengths


def _open_runs():
    """Opens the runs and prepares `--split` of `--corpus` or of their text."""
    # Returns pairs of a model and facts about it for the JSON file, facts
    # about the text, and the `PreparedSplit`.
    names, workdirs = _labels(), [Workdir(path) for path in FLAGS.workdirs]
    configs = [workdir.read_config() for workdir in workdirs]
    hashes = [config["tokenizer"] for config in configs]
    _check_equal("workdirs", "tokenizer", hashes)
    tokenizer = workdirs[0].load_tokenizer()
    source = data_flags.corpus_options(configs[0]["corpus"])
    corpus, split = data_flags.prepare_split(source, tokenizer, FLAGS.split)
    runs = []
    for label, workdir, config in zip(names, workdirs, configs, strict=True):
        if FLAGS.corpus is None:
            data_flags.check_run_text(
                split, config["data"].get(FLAGS.split), corpus, workdir.path,
                "Bring it back, or give one text for all runs with --corpus",
            )  # fmt: skip
        model, step = workdir.load_model(tokenizer, **model_flags.given())
        length = FLAGS.segment_length or config["flags"].get("segment_length")
        check_integer("segment_length", length, 1)
        model.backbone.check_positions(length)
        facts = {
            "label": label,
            "workdir": workdir.path,
            "step": step,
            "segment_length": length,
            "memory_length": model.backbone.memory_length,
            "reset_documents": config["flags"].get("reset_documents", False),
        }
        runs.append((model, facts))
    text = {
        "corpus": source["corpus"],
        "fingerprint": split.fingerprint(),
        "split": FLAGS.split,
        "unit": tokenizer.unit,
        "num_positions": FLAGS.num_positions,
    }
    return runs, text, split


def _losses(runs, numbers, tokens):
    """Adds losses by context length and RECLs to the facts of the runs."""
    lengths, models = numbers["context_lengths"], [facts for _, facts in runs]
    check_integer("context_lengths", max(lengths), 1, len(tokens) - 1)
    positions = evaluation.spread_positions(
        len(tokens), FLAGS.num_positions, max(lengths)
    )
    backup = Backup(f"{_stem()}_state", {**numbers, "models": models})
    shape = len(runs), len(lengths), len(positions)
    losses = np.full(shape, np.nan, np.float32)
    if state := backup.restore():
        losses[:] = state["losses"]
    for (model, facts), own in zip(runs, losses, strict=True):
        with progress_bar(own.size, "reading", facts["label"]) as show:

            def on_progress(done, _, show=show):
                show(done)
                if done % len(positions) == 0:
                    backup.save({"losses": losses})

            evaluation.context_losses(
                model,
                tokens,
                positions,
                lengths,
                facts["segment_length"],
                facts["memory_length"],
                FLAGS.batch_size,
                on_progress,
                own,
            )
        facts["nll"] = own.mean(axis=1, dtype=float).tolist()
    if FLAGS.picture == "recl":
        for facts in models:
            facts["recl"] = []
        for share in options.numbers("top_r", float):
            found = recl.effective_context_lengths(losses, lengths, share)
            for facts, result in zip(models, found, strict=True):
                facts["recl"].append({"top_r": share, **result})


def _draw_recl(numbers, path):
    plots.plot_recl(numbers, path)
    models = numbers["models"]
    shares = [f"r = {result['top_r']:g}" for result in models[0]["recl"]]
    width = max(len("model"), *(len(model["label"]) for model in models))
    for name, cells in [
        ("model", shares),
        *((m["label"], map(recl.recl_label, m["recl"])) for m in models),
    ]:
        print(f"{name:{width}}", *(f"{cell:>10}" for cell in cells))


def _positions(model, facts, split):
    """Returns the losses of a run by position in the segment."""
    tokens, documents = split.head(FLAGS.max_eval_tokens)
    sizes = facts["segment_length"], facts["memory_length"]
    # Each row first fills its memory with the text before its own part, so
    # that every token is scored with a full memory.
    segments = Segments(
        tokens,
        FLAGS.batch_size,
        sizes[0],
        drop_remainder=False,
        documents=documents,
        reset_documents=facts["reset_documents"],
        warmup_segments=segments_in_memory(model.backbone, *sizes),
    )
    evaluator = evaluation.Evaluator(
        model, tf.distribute.get_strategy(), FLAGS.batch_size, *sizes
    )
    nll = np.empty(len(tokens), np.float32)
    with progress_bar(len(segments), "segment", facts["label"]) as show:
        evaluator.evaluate(segments, None, show, nll)
    return report.position_curve(nll, segments=segments, bins_per_doubling=4)


def _attention(model, facts, tokens):
    """Returns the attention of a run in the middle of the text."""
    check_attends(model)
    shown = {}
    for name in ("layers", "heads"):
        size = getattr(model.backbone, f"num_{name}")
        shown[name] = list(range(size))
        if FLAGS[name].value is not None:
            shown[name] = options.numbers(name, int)
        options.refuse(
            not 0 <= min(shown[name]) <= max(shown[name]) < size,
            f"`{name}` must be numbers from 0 to {size - 1}: the model has "
            f"{size} {name}.",
        )
    length, memory_length = facts["segment_length"], facts["memory_length"]
    before = length * segments_in_memory(model.backbone, length, memory_length)
    start = len(tokens) // 2
    if not before <= start <= len(tokens) - length:
        raise ValueError(
            "`segment_length` and `memory_length` must fit in the text, around "
            f"its middle. Received: segment_length={length}, memory_length="
            f"{memory_length} and a text of {len(tokens):,} tokens"
        )
    maps = evaluation.attention_maps(
        model, tokens, [start], length, memory_length
    )
    context = tokens[start - memory_length : start + length]
    return {
        **shown,
        "tokens": [_token_label(model.tokenizer, token) for token in context],
        "maps": maps[:, 0][np.ix_(*shown.values())],
    }


def _token_label(tokenizer, token):
    """Returns a printable text of a token for an axis."""
    text = tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace")
    if tokenizer.unit in ("word", "token"):  # with a space before or after
        text = text.strip(" ")
    return text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")


_DRAW = {
    "learning_curves": _draw_learning_curves,
    "context_losses": plots.plot_context_losses,
    "positions": plots.plot_positions,
    "attention": plots.plot_attention_maps,
    "recl": _draw_recl,
}


if __name__ == "__main__":
    running.run(main)
