r"""Draws pictures that compare runs.

    txl plot --picture=learning_curves \
        --workdirs=runs/memory,runs/no_memory --output=runs/curves.png
    txl plot --picture=positions --labels=Transformer-XL,vanilla \
        --workdirs=runs/memory,runs/no_memory --output=runs/positions.svg
    txl plot --picture=attention --workdirs=runs/memory \
        --segment_length=24 --memory_length=24 --layers=0,3 --heads=0,1 \
        --output=runs/attention.png
    txl plot --picture=recl --numbers=runs/recl.json \
        --output=runs/recl.pdf
    txl plot --picture=learning_curves --labels=memory,memory,none,none \
        --workdirs=runs/a0,runs/a1,runs/b0,runs/b1 --output=runs/seeds.png

All pictures but learning_curves use the text of the runs, or --corpus:

learning_curves  training and validation loss by step. Runs of one label are
                 seeds: their means are drawn, validation with a band from the
                 least to the greatest loss
context_losses   loss of --num_positions tokens, each predicted from exactly c
                 tokens, for each c of --context_lengths
positions        loss by position in the segment, averaged over groups of
                 neighbouring positions, with a band of two standard errors.
                 Without memory the first tokens of a segment are hard to
                 predict (context fragmentation)
attention        attention maps of one segment over itself and memory, in the
                 middle of the text
attention_by_distance
                 mean attention of --num_positions queries to the keys before
                 them, by distance: appendix D of the paper
recl             relative effective context lengths, which `txl recl` measures;
                 --numbers is the file that it wrote

The runs must share one tokenizer, or for learning_curves one unit of tokens.
Losses are shown in bits per byte or character, or as perplexity per word.

The numbers in a picture, except attention maps, are written beside it as .json,
with losses in nats. --numbers draws such a file again, in another file type;
several files of learning_curves become one picture.
"""

import functools
import math
import os

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.checks import check_integer
from txl_keras.data import Segments
from txl_keras.evaluation.attention_maps import attention_maps_at
from txl_keras.evaluation.attention_maps import check_attends
from txl_keras.evaluation.attention_maps import check_heads
from txl_keras.evaluation.attention_maps import mean_attention_by_distance
from txl_keras.evaluation.context_losses import context_losses
from txl_keras.evaluation.context_losses import spread_positions
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import segments_in_memory
from txl_keras.evaluation.plots import FORMATS
from txl_keras.evaluation.plots import plot_attention_by_distance
from txl_keras.evaluation.plots import plot_attention_maps
from txl_keras.evaluation.plots import plot_learning_curves
from txl_keras.evaluation.plots import plot_losses
from txl_keras.evaluation.plots import plot_recl
from txl_keras.evaluation.report import learning_curve
from txl_keras.evaluation.report import measure
from txl_keras.evaluation.report import merge_positions
from txl_keras.evaluation.report import segment_position_losses
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import read_json
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import several_runs
from txl_keras.scripts.progress_bar import progress_bar
from txl_keras.workdir import Workdir
from txl_keras.workdir import write_json

FLAGS = flags.FLAGS


class Plot(options.Options, formats=", ".join(FORMATS)):
    """Holds the options of this command.

    picture: The picture to draw: loss by step (learning_curves), by context
        length (context_losses) or by position in the segment (positions);
        attention maps (attention), attention by distance
        (attention_by_distance), or effective context lengths (recl).
    output: Picture to write, of type {formats}.
    numbers: JSON file of an earlier picture to draw again, instead of measuring
        --workdirs; of learning_curves also several.
    x_axis: Unit of the x axis of learning_curves.
    layers: Layers to show in attention and attention_by_distance, counted from
        0. Default: all.
    heads: Heads to show in attention and attention_by_distance, counted from 0.
        Default: all.

    Data options:
    segment_length: Tokens per segment. Default: as in training.

    Evaluation options:
    max_eval_tokens: Score only this many tokens from the start of the split, in
        positions. Default: all.
    """

    picture: options.one_of(
        ["learning_curves", "context_losses", "positions", "attention",
         "attention_by_distance", "recl"]
    ) = options.REQUIRED  # fmt: skip
    output: str = options.REQUIRED
    numbers: list = None
    x_axis: options.one_of(["steps", "tokens"]) = "steps"
    layers: list = None
    heads: list = None
    segment_length: options.integer(1) = None
    max_eval_tokens: options.integer(2) = None


Plot.define()
several_runs.define_group_flags([2**i for i in range(10)])
model_flags.Model.define("memory_length", note=" Default: as in training.")

# Flags that only some pictures use.
_ONLY_FOR = {
    "x_axis": ("learning_curves",),
    "context_lengths": ("context_losses",),
    "num_positions": ("context_losses", "attention_by_distance"),
    "memory_length": (
        "context_losses",
        "positions",
        "attention",
        "attention_by_distance",
    ),
    "max_eval_tokens": ("positions",),
    "layers": ("attention", "attention_by_distance"),
    "heads": ("attention", "attention_by_distance"),
}
# Flags that say what to measure.
_MEASURED_BY = (
    "workdirs", "labels", "checkpoint", "corpus", "split", "segment_length",
    "batch_size", *(name for name in _ONLY_FOR if name != "x_axis"),
)  # fmt: skip


def main(_):
    endings = tuple(f".{name}" for name in FORMATS)
    output = several_runs.output_path(endings, "the type of the picture")
    measure_runs, draw = _PICTURES[FLAGS.picture]
    _check_flags()
    if FLAGS.numbers:
        try:
            draw(_read(), output)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                "`numbers` must be as `txl` wrote them: measure them again. "
                f"Received: --numbers={','.join(FLAGS.numbers)} ({error!r})"
            ) from error
    else:
        path = f"{os.path.splitext(output)[0]}.json"
        several_runs.check_replaces(path, [*_PICTURES.keys() - {"recl"}])
        numbers = measure_runs()
        if FLAGS.picture != "attention":  # maps are too large for JSON
            write_json({"picture": FLAGS.picture, **numbers}, path)
            print(f"Written to {path}")
        draw(numbers, output)
    print(f"Written to {output}")


def _check_flags():
    """Checks the flags before anything is loaded."""
    running.check_used("picture", _ONLY_FOR)
    received = f"Received: --workdirs={FLAGS.workdirs}, --numbers="
    received += ",".join(FLAGS.numbers or ["None"])
    given = [name for name in _MEASURED_BY if FLAGS[name].present]
    several = len(FLAGS.numbers or []) > 1
    for is_wrong, expected in (
        (
            FLAGS.picture == "recl" and not FLAGS.numbers,
            "`numbers` must be given with --picture=recl: the file that `txl "
            "recl` wrote.",
        ),
        (
            FLAGS.picture == "attention" and FLAGS.numbers,
            "`numbers` must be left out with --picture=attention, whose maps "
            "are measured by --workdirs.",
        ),
        (
            FLAGS.numbers and given,
            f"`{''.join(given[:1])}` must be left out with `numbers`, which "
            "were measured already.",
        ),
        (
            not (FLAGS.numbers or FLAGS.workdirs),
            "`workdirs` must be one or more runs, or `numbers` a file to draw.",
        ),
        (
            several and FLAGS.picture != "learning_curves",
            "`numbers` must be one file, or --picture=learning_curves.",
        ),
    ):
        if is_wrong:
            raise ValueError(f"{expected} {received}")
    if FLAGS.workdirs:
        several_runs.check_different("workdirs", FLAGS.workdirs, "runs")
        _labels()
    for name in ("layers", "heads"):
        if FLAGS[name].value is not None:
            several_runs.numbers(name, int)


def _labels():
    """Returns the names of runs; of learning curves some may be the same."""
    return several_runs.labels(FLAGS.picture == "learning_curves")


# === Numbers from files ===


def _read():
    """Reads the files `--numbers`, of which several become one picture."""
    paths = [os.path.expanduser(path) for path in FLAGS.numbers]
    several_runs.check_different("numbers", paths, "files")
    numbers, *others = map(_read_file, paths)
    for path, other in zip(paths[1:], others, strict=True):
        if other["unit"] != numbers["unit"]:
            raise ValueError(
                "`numbers` must be files of one unit of tokens. Received: "
                f"{paths[0]}, of {numbers['unit']}s, and {path}, of "
                f"{other['unit']}s"
            )
        numbers["models"] += other["models"]
    return numbers


def _read_file(path):
    numbers = read_json(path, max_bytes=MAX_VOCABULARY_BYTES)
    pictures = [FLAGS.picture]
    if FLAGS.picture == "context_losses":
        pictures.append("recl")  # these files hold the same losses
    received = numbers.get("picture")
    if received not in pictures:
        raise ValueError(
            "`numbers` must be the JSON file of a picture of "
            f"{' or '.join(pictures)}. Received: {path}, of {received}"
        )
    return numbers


# === Learning curves ===


def _measure_learning_curves():
    workdirs = [Workdir(path) for path in FLAGS.workdirs]
    units = [_scored_unit(workdir) for workdir in workdirs]
    if len(set(units)) > 1:
        raise ValueError(
            "`workdirs` must be runs whose tokens have one unit. Received: "
            + ", ".join(map("{} of {}s".format, FLAGS.workdirs, units))
        )
    models = [
        {"label": label, "workdir": workdir.path, **_learning_curve(workdir)}
        for workdir, label in zip(workdirs, _labels(), strict=True)
    ]
    return {"unit": units[0], "models": models}


def _scored_unit(workdir):
    """Returns the unit of a run's losses, such as "byte"."""
    unit = workdir.load_tokenizer().unit
    if workdir.model_class_name() == "XLNetPermutationLM":
        return f"predicted {unit}"  # not comparable with left-to-right losses
    workdir.check_model_class()
    return unit


def _learning_curve(workdir):
    """Returns a run's nats per token, of train and valid by step, of test."""
    metrics = workdir.read_metrics()
    if not metrics:
        raise ValueError(
            "`workdirs` must be runs that were trained here. Received: "
            f"{workdir.path}, without {workdir.metrics}"
        )
    run_flags = workdir.read_config()["flags"]
    return {
        "seed": run_flags.get("seed"),
        "tokens_per_step": math.prod(
            check_integer(name, run_flags.get(name), 1)
            for name in ("batch_size", "segment_length")
        ),
        **learning_curve(metrics),
        **_test_scores(workdir),
    }


def _test_scores(workdir):
    """Returns the test loss of most tokens, the latest, or of the training."""
    evaluations = workdir.read_evaluations("test")
    if evaluations:
        scores = max(
            reversed(evaluations), key=lambda e: e.get("num_tokens", 0)
        )
    elif workdir.is_finished():
        scores = workdir.read_results()["test"]
    else:
        return {}
    names = ("nll", "num_tokens", "segment_length", "memory_length", "dynamic")
    return {"test": {n: scores[n] for n in names if n in scores}}


def _draw_learning_curves(numbers, path):
    unit = numbers["unit"]
    by_tokens = FLAGS.x_axis == "tokens"
    runs_of = {}
    for model in numbers["models"]:
        runs_of.setdefault(model["label"], []).append(model)
    curves = {
        label: {
            name: _mean_curve(runs, name, by_tokens)
            for name in ("train", "valid")
        }
        for label, runs in runs_of.items()
    }
    x_label = f"{unit}s read" if by_tokens else "step"
    plot_learning_curves(curves, path, unit, x_label)
    _print_scores(runs_of, unit)


def _mean_curve(runs, name, by_tokens):
    """Returns x, mean nats, and for several runs also least and greatest."""
    first = runs[0]
    steps, tokens_per_step = first[name]["steps"], first["tokens_per_step"]
    for run in runs[1:]:
        found = run[name]["steps"], run["tokens_per_step"]
        if found != (steps, tokens_per_step):
            raise ValueError(
                "`labels` must be the same only for runs that were measured at "
                "the same steps, of as many tokens (--steps_per_execution, "
                "--eval_every, --max_steps, --batch_size, --segment_length). "
                f"Received: {run['label']!r} for runs with {len(steps)} and "
                f"{len(found[0])} losses of {name}, of {tokens_per_step} and "
                f"{found[1]} tokens per step"
            )
    scale = tokens_per_step if by_tokens else 1
    nll = np.array([run[name]["nll"] for run in runs])
    curve = [step * scale for step in steps], nll.mean(axis=0).tolist()
    if len(runs) == 1:
        return curve
    return (*curve, nll.min(axis=0).tolist(), nll.max(axis=0).tolist())


def _print_scores(runs_of, unit):
    """Prints the last loss of valid, and of test, with the spread of runs."""
    name, convert = measure(unit)
    width = max(len("model"), *map(len, runs_of))
    print(f"{'model':{width}} {'runs':>4} {'valid':>14} {'test':>14}  {name}")
    for label, runs in runs_of.items():
        valid = [run["valid"]["nll"][-1] for run in runs if run["valid"]["nll"]]
        test = [run["test"]["nll"] for run in runs if "test" in run]
        cells = [_mean_and_deviation([*map(convert, x)]) for x in (valid, test)]
        print(f"{label:{width}} {len(runs):>4} {cells[0]:>14} {cells[1]:>14}")


def _mean_and_deviation(values):
    """Formats the mean and the standard deviation of a sample."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


# === Losses and attention, measured on a text ===


def _measure_text(measure_runs):
    """Calls a function of runs, tokenizer and split; returns all numbers."""
    runs, tokenizer, _, text, split = several_runs.open_group(
        FLAGS.segment_length, FLAGS.memory_length
    )
    facts = measure_runs(runs, tokenizer, split)
    return {**text, **facts, "models": [run.facts for run in runs]}


def _measure_context_losses(runs, _, split):
    lengths = sorted(several_runs.numbers("context_lengths", int))
    positions = spread_positions(
        len(split.tokens), FLAGS.num_positions, max(lengths)
    )
    for run in runs:
        with _progress(run, len(lengths) * len(positions), "reading") as show:
            losses = context_losses(
                run.model,
                split.tokens,
                positions,
                lengths,
                run.segment_length,
                run.memory_length,
                FLAGS.batch_size,
                show,
            )
        run.facts["nll"] = losses.mean(axis=1, dtype=float).tolist()
    return {"num_positions": len(positions), "context_lengths": lengths}


def _measure_positions(runs, _, split):
    tokens, documents = split.head(FLAGS.max_eval_tokens)
    for run in runs:
        # Each row first fills its memory with the text before its own part, so
        # that every token is scored with a full memory.
        segments = Segments(
            tokens,
            FLAGS.batch_size,
            run.segment_length,
            drop_remainder=False,
            documents=documents,
            reset_documents=run.reset_documents,
            warmup_segments=_segments_in_memory(run),
        )
        evaluator = Evaluator(
            run.model,
            tf.distribute.get_strategy(),
            FLAGS.batch_size,
            run.segment_length,
            run.memory_length,
        )
        nll = np.empty(len(tokens), np.float32)
        with _progress(run, len(segments), "segment") as show:
            evaluator.evaluate(segments, None, show, nll)
        run.facts |= segment_position_losses(nll, segments)
    return {"max_eval_tokens": FLAGS.max_eval_tokens}


def _check_attention(runs, split, start=None):
    """Checks all runs, and that memory can be full at the token `start`."""
    for run in runs:
        check_attends(run.model)
        check_heads(run.model.backbone, *_layers_and_heads(run))
        length, memory_length = run.segment_length, run.memory_length
        before = length * _segments_in_memory(run)
        first = max(1, before) if start is None else start
        if not before <= first <= len(split.tokens) - length:
            raise ValueError(
                "`segment_length` and `memory_length` must fit in the text"
                f"{', around its middle' if start else ''}. Received: "
                f"segment_length={length}, memory_length={memory_length} and a "
                f"text of {len(split.tokens):,} tokens"
            )


def _measure_attention(runs, tokenizer, split):
    start = len(split.tokens) // 2
    _check_attention(runs, split, start)
    for run in runs:
        length, memory_length = run.segment_length, run.memory_length
        layers, heads = _layers_and_heads(run)
        maps = attention_maps_at(
            run.model, split.tokens, [start], length, memory_length
        )[:, 0]
        context = split.tokens[start - memory_length : start + length]
        run.facts |= {
            "layers": layers,
            "heads": heads,
            "tokens": [_token_label(tokenizer, token) for token in context],
            "maps": maps[layers][:, heads],
        }
    return {}


def _measure_attention_by_distance(runs, _, split):
    _check_attention(runs, split)
    for run in runs:
        length = run.segment_length
        starts = spread_positions(
            len(split.tokens) - length + 1,
            -(-FLAGS.num_positions // length),
            max(1, length * _segments_in_memory(run)),
        )
        layers, heads = _layers_and_heads(run)
        with _progress(run, len(starts), "segment") as show:
            means = mean_attention_by_distance(
                run.model,
                split.tokens,
                starts,
                length,
                run.memory_length,
                FLAGS.batch_size,
                show,
            )
        run.facts |= {
            "layers": layers,
            "heads": heads,
            "num_segments": len(starts),
            "attention": means[layers][:, heads].tolist(),
        }
    return {}


def _progress(run, total, unit):
    return progress_bar(total, unit, run.facts["label"])


def _segments_in_memory(run):
    return segments_in_memory(
        run.model.backbone, run.segment_length, run.memory_length
    )


def _layers_and_heads(run):
    """Returns the numbers of `--layers` and of `--heads`, by default all."""
    return (
        list(range(getattr(run.model.backbone, f"num_{name}")))
        if FLAGS[name].value is None
        else several_runs.numbers(name, int)
        for name in ("layers", "heads")
    )


def _token_label(tokenizer, token):
    """Returns a printable text of a token for an axis."""
    text = tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace")
    if tokenizer.unit in ("word", "token"):  # with a space before or after
        text = text.strip(" ")
    return text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")


def _draw_context_losses(numbers, path):
    x, unit = numbers["context_lengths"], numbers["unit"]
    curves = {m["label"]: (x, m["nll"]) for m in numbers["models"]}
    plot_losses(curves, path, f"context length, {unit}s", unit, x)


def _draw_positions(numbers, path):
    curves = {m["label"]: merge_positions(m) for m in numbers["models"]}
    unit = numbers["unit"]
    count = min(min(model["num_tokens"]) for model in numbers["models"])
    x_label = (
        f"{unit}s before it in the segment\n(means over at least {count:,} "
        f"{unit}s; bands: two standard errors)"
    )
    plot_losses(curves, path, x_label, unit)


def _draw_attention(numbers, path):
    plot_attention_maps(numbers["models"], path, numbers["unit"])


def _draw_attention_by_distance(numbers, path):
    plot_attention_by_distance(numbers["models"], path, numbers["unit"])


def _draw_recl(numbers, path):
    results = {
        model["label"]: {result["top_r"]: result for result in model["recl"]}
        for model in numbers["models"]
    }
    plot_recl(results, path, numbers["unit"])


# The functions that measure and draw each picture.
_PICTURES = {
    "learning_curves": (_measure_learning_curves, _draw_learning_curves),
    "context_losses": (
        functools.partial(_measure_text, _measure_context_losses),
        _draw_context_losses,
    ),
    "positions": (
        functools.partial(_measure_text, _measure_positions), _draw_positions
    ),
    "attention": (
        functools.partial(_measure_text, _measure_attention), _draw_attention
    ),
    "attention_by_distance": (
        functools.partial(_measure_text, _measure_attention_by_distance),
        _draw_attention_by_distance,
    ),
    "recl": (None, _draw_recl),
}  # fmt: skip


if __name__ == "__main__":
    running.run(main)
