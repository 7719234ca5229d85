r"""Draws pictures that compare runs.

    txl plot --picture=learning_curves \
        --workdirs=runs/memory,runs/no_memory --output=runs/curves.png
    txl plot --picture=positions --labels=Transformer-XL,vanilla \
        --workdirs=runs/memory,runs/no_memory --output=runs/positions.svg
    txl plot --picture=attention --workdirs=runs/memory \
        --segment_length=24 --memory_length=24 --layers=0,3 --heads=0,1 \
        --output=runs/attention.png
    txl plot --picture=recl --numbers=runs/recl.json --output=runs/recl.pdf
    txl plot --picture=learning_curves --labels=memory,memory,none,none \
        --workdirs=runs/a0,runs/a1,runs/b0,runs/b1 --output=runs/seeds.png

All pictures but learning_curves use the text of the runs, or --corpus:

learning_curves  training and validation loss by tokens read. Runs of one label
                 are seeds, drawn in one colour; prints means and deviations
context_losses   loss of --num_positions tokens, each predicted from exactly c
                 tokens, for each c of --context_lengths
positions        loss by position in the segment, with a band of two standard
                 errors: context fragmentation
attention        attention maps of the segment in the middle of the text
recl             effective context lengths, the --numbers of `txl recl`

The runs must share one tokenizer, or for learning_curves one unit of tokens.
The numbers in a picture, except attention maps, are written beside it as .json,
with losses in nats. --numbers draws such a file again, in another file type;
several files of learning_curves become one picture.
"""

import os

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf

from txl_keras import evaluation
from txl_keras.data import Segments
from txl_keras.evaluation import plots
from txl_keras.evaluation import report
from txl_keras.evaluation.attention_maps import check_attends
from txl_keras.evaluation.evaluator import segments_in_memory
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import read_json
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import several_runs
from txl_keras.scripts.options import FLAGS
from txl_keras.training.progress import progress_bar
from txl_keras.workdir import Workdir
from txl_keras.workdir import write_json

_PICTURES = (
    "learning_curves", "context_losses", "positions", "attention", "recl",
)  # fmt: skip


class Plot(options.Options, formats=", ".join(plots.FORMATS)):
    """Holds the options of this command.

    picture: The picture to draw, see above.
    output: Picture to write, of type {formats}.
    numbers: JSON file of an earlier picture to draw again, instead of measuring
        --workdirs; of learning_curves also several.
    layers: Layers to show in attention, counted from 0. Default: all.
    heads: Heads to show in attention, counted from 0. Default: all.

    Evaluation options:
    max_eval_tokens: Score only this many tokens from the start of the split, in
        positions. Default: all.
    """

    picture: options.one_of(_PICTURES) = options.REQUIRED
    output: options.path = options.REQUIRED
    numbers: list = None
    layers: list = None
    heads: list = None
    max_eval_tokens: options.integer(2) = None


Plot.define()
several_runs.define_group_flags([2**i for i in range(10)])
model_flags.Model.define("memory_length", note=" Default: as in training.")


def main(_):
    output = several_runs.output_path(tuple(f".{x}" for x in plots.FORMATS))
    options.refuse(
        bool(FLAGS.numbers) == bool(FLAGS.workdirs),
        "Either `workdirs`, one or more runs, or `numbers` must be given: the "
        "file of `txl recl` for --picture=recl.",
    )
    if FLAGS.numbers:
        numbers = _read()
    else:
        options.refuse(
            FLAGS.picture == "recl",
            "`picture` recl is drawn from the `numbers` that `txl recl` wrote.",
        )
        is_curve = FLAGS.picture == "learning_curves"
        numbers = _learning_curves() if is_curve else _measure()
        if FLAGS.picture != "attention":  # maps are too large for JSON
            path = f"{os.path.splitext(output)[0]}.json"
            write_json({"picture": FLAGS.picture, **numbers}, path)
            print(f"Written to {path}")
    _DRAW[FLAGS.picture](numbers, output)
    print(f"Written to {output}")


def _read():
    """Reads the files `--numbers`, of which several become one picture."""
    pictures = [FLAGS.picture]
    if FLAGS.picture == "context_losses":
        pictures.append("recl")  # these files hold the same losses
    options.refuse(
        len(FLAGS.numbers) > 1 and FLAGS.picture != "learning_curves",
        "`numbers` must be one file, or --picture=learning_curves.",
    )
    files = [
        read_json(os.path.expanduser(path), max_bytes=MAX_VOCABULARY_BYTES)
        for path in FLAGS.numbers
    ]
    found = {numbers.get("picture") for numbers in files}
    options.refuse(
        not found <= {*pictures},
        f"`numbers` must be those of a picture of {' or '.join(pictures)}, "
        f"not of {', '.join(sorted(map(str, found)))}.",
    )
    units = [numbers["unit"] for numbers in files]
    several_runs.check_equal("numbers", "unit of tokens", units)
    models = [model for numbers in files for model in numbers["models"]]
    return {**files[0], "models": models}


# === Learning curves ===


def _learning_curves():
    """Reads the losses of the runs, which must have one unit of tokens."""
    units, models = [], []
    for label, path in zip(several_runs.labels(), FLAGS.workdirs, strict=True):
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
        scores = workdir.read_evaluations("test")
        if not scores and workdir.is_finished():
            scores = [workdir.read_results()["test"]]
        # That of most tokens, the latest, or of the training.
        test = max(reversed(scores), key=lambda x: x["num_tokens"], default={})
        names = {"nll", "num_tokens", "segment_length", "memory_length"}
        names.add("evaluator")
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
    several_runs.check_equal("workdirs", "unit of tokens", units)
    return {"unit": units[0], "models": models}


def _draw_learning_curves(numbers, path):
    plots.plot_learning_curves(numbers, path)
    # The last loss of valid, and of test, with the spread of runs.
    models = numbers["models"]
    name, convert = report.measure(numbers["unit"])
    labels = [*dict.fromkeys(model["label"] for model in models)]
    width = max(len("model"), *map(len, labels))
    print(f"{'model':{width}} {'runs':>4} {'valid':>14} {'test':>14}  {name}")
    for label in labels:
        runs = [model for model in models if model["label"] == label]
        valid = [convert(x) for run in runs for x in run["valid"]["nll"][-1:]]
        test = [convert(run["test"]["nll"]) for run in runs if run.get("test")]
        cells = f"{_spread(valid):>14} {_spread(test):>14}"
        print(f"{label:{width}} {len(runs):>4} {cells}")


def _spread(values):
    """Formats the mean and the standard deviation of a sample."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else "-"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


# === Losses and attention, measured on a text ===


def _measure():
    """Measures the runs on a text."""
    runs, text, split = several_runs.open_group()
    lengths = sorted(options.numbers("context_lengths", int))
    for model, facts in runs:
        if FLAGS.picture == "context_losses":
            losses = several_runs.measure_losses(
                model, facts, split.tokens, lengths
            )
            facts["nll"] = losses.mean(axis=1, dtype=float).tolist()
        elif FLAGS.picture == "positions":
            facts["positions"] = _positions(model, facts, split)
        else:
            facts |= _attention(model, facts, split.tokens)
    return {
        **text,
        "context_lengths": lengths,
        "max_eval_tokens": FLAGS.max_eval_tokens,
        "models": [facts for _, facts in runs],
    }


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
    "recl": plots.plot_recl,
}


if __name__ == "__main__":
    running.run(main)
