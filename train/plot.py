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

learning_curves        training and validation loss by step. Runs of one label
                       are seeds: their means are drawn, validation with a band
                       from the least to the greatest loss
context_losses         loss of --num_positions tokens, each predicted from
                       exactly c tokens, for each c of --context_lengths
memory_lengths         loss with each of --memory_lengths in evaluation
positions              loss by position in the segment, averaged over groups of
                       neighbouring positions, with a band of two standard
                       errors. Without memory the first tokens of a segment are
                       hard to predict (context fragmentation)
attention              attention maps of one segment over itself and memory
attention_by_distance  attention by distance: means over heads and over
                       --num_positions queries, spread over the split
recl                   relative effective context lengths, which `txl recl`
                       measures; --numbers is the file that it wrote

The runs must share one tokenizer, or for learning_curves one unit of tokens.
Losses are shown in bits per byte or character, or as perplexity per word.

The numbers in a picture, except attention maps, are written beside it as .json,
with losses in nats. --numbers draws such a file again, in another file type;
several files of learning_curves become one picture.
"""

import dataclasses
import functools
import math
import os

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.checks import check_integer
from txl_keras.data import Segments
from txl_keras.data.corpora.corpus import SPLITS
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
from txl_keras.scripts import data_flags
from txl_keras.scripts import running
from txl_keras.scripts import several_runs
from txl_keras.scripts.progress_bar import progress_bar
from txl_keras.workdir import Workdir
from txl_keras.workdir import write_json

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "picture", None,
    ["learning_curves", "context_losses", "memory_lengths", "positions",
     "attention", "attention_by_distance", "recl"],
    "The picture to draw: loss by step (learning_curves), by context length "
    "(context_losses), by memory length (memory_lengths) or by position in the "
    "segment (positions); attention maps (attention), attention by distance "
    "(attention_by_distance), or effective context lengths (recl).",
    required=True,
)  # fmt: skip
flags.DEFINE_string(
    "output", None, f"Picture to write, of type {', '.join(FORMATS)}.",
    required=True,
)  # fmt: skip
flags.DEFINE_list("workdirs", None, "Folders of one or more runs to compare.")
flags.DEFINE_list(
    "numbers", None,
    "JSON file of an earlier picture to draw again, instead of measuring "
    "--workdirs; of learning_curves also several.",
)  # fmt: skip
flags.DEFINE_list(
    "labels", None,
    "Names of the runs in the picture, in their order; in learning_curves runs "
    "of one name are seeds. Default: their folders.",
)  # fmt: skip
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"],
    "Weights to load: those with the best validation score, or the latest.",
)  # fmt: skip
# By default the text of the runs.
data_flags.define_corpus_flags(required=False)
flags.adopt_module_key_flags(data_flags)
flags.DEFINE_enum("split", "test", SPLITS, "Split of the text to read.")
flags.DEFINE_integer(
    "segment_length", None, "Tokens per segment. Default: as in training.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_integer(
    "memory_length", None, "Tokens of memory. Default: as in training.",
    lower_bound=0,
)  # fmt: skip
flags.DEFINE_bool(
    "same_length", None,
    "Let every token attend to exactly memory_length earlier tokens. Default: "
    "as in training.",
)  # fmt: skip
flags.DEFINE_integer(
    "clamp_length", None,
    "Largest relative distance to encode; greater distances count as this one. "
    "Default: as in training.", lower_bound=1,
)  # fmt: skip
flags.DEFINE_integer("batch_size", 16, "Rows per batch.", lower_bound=1)
flags.DEFINE_enum(
    "x_axis", "steps", ["steps", "tokens"],
    "Unit of the x axis of learning_curves.",
)  # fmt: skip
flags.DEFINE_list(
    "context_lengths", [str(2**i) for i in range(10)],
    "Context lengths to compare in context_losses, in tokens.",
)  # fmt: skip
flags.DEFINE_integer(
    "num_positions", 1000,
    "Number of tokens to predict in context_losses, or of queries in "
    "attention_by_distance.", lower_bound=1,
)  # fmt: skip
flags.DEFINE_list(
    "memory_lengths", ["0", "16", "32", "64", "128", "256", "512"],
    "Memory lengths to compare in memory_lengths, in tokens.",
)  # fmt: skip
flags.DEFINE_integer(
    "max_eval_tokens", None,
    "Score only this many tokens from the start of the split, in "
    "memory_lengths and positions. Default: all.", lower_bound=2,
)  # fmt: skip
flags.DEFINE_list(
    "layers", None,
    "Layers to show in attention and attention_by_distance, counted from 0. "
    "Default: all.",
)  # fmt: skip
flags.DEFINE_list(
    "heads", None,
    "Heads to show in attention and attention_by_distance, counted from 0. "
    "Default: all.",
)  # fmt: skip
flags.DEFINE_integer(
    "start", None,
    "Position in the split, from 0, where the segment of attention begins. "
    "Default: the middle of the split.", lower_bound=0,
)  # fmt: skip


# Flags that only some pictures use.
_ONLY_FOR = {
    "x_axis": ("learning_curves",),
    "context_lengths": ("context_losses",),
    "num_positions": ("context_losses", "attention_by_distance"),
    "memory_lengths": ("memory_lengths",),
    "memory_length": (
        "context_losses", "positions", "attention", "attention_by_distance",
    ),
    "max_eval_tokens": ("memory_lengths", "positions"),
    "layers": ("attention", "attention_by_distance"),
    "heads": ("attention", "attention_by_distance"),
    "start": ("attention",),
}  # fmt: skip
# Flags that say what to measure.
_MEASURED_BY = (
    "workdirs", "labels", "checkpoint", "corpus", "split", "segment_length",
    "same_length", "clamp_length", "batch_size",
    *(name for name in _ONLY_FOR if name != "x_axis"),
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
        path = os.path.splitext(output)[0]
        several_runs.check_replaces(
            f"{path}.json", [name for name, (by, _) in _PICTURES.items() if by]
        )
        numbers = measure_runs()
        if FLAGS.picture != "attention":  # maps are too large for JSON
            write_json({"picture": FLAGS.picture, **numbers}, f"{path}.json")
            print(f"Written to {path}.json")
        draw(numbers, output)
    print(f"Written to {output}")


def _check_flags():
    """Checks the flags before anything is loaded."""
    running.check_used("picture", _ONLY_FOR)
    if FLAGS.picture == "recl" and not FLAGS.numbers:
        raise ValueError(
            "`numbers` must be given with --picture=recl: the file that "
            "`txl recl` wrote. Received: --numbers=None"
        )
    if FLAGS.picture == "attention" and FLAGS.numbers:
        raise ValueError(
            "`numbers` must be left out with --picture=attention, whose maps "
            "are measured by --workdirs. Received: "
            f"--numbers={','.join(FLAGS.numbers)}"
        )
    measured = [name for name in _MEASURED_BY if FLAGS[name].present]
    if FLAGS.numbers and measured:
        raise ValueError(
            f"`{measured[0]}` must be left out with `numbers`, which were "
            "measured already. Received: "
            f"--{measured[0]}, --numbers={','.join(FLAGS.numbers)}"
        )
    if not (FLAGS.numbers or FLAGS.workdirs):
        raise ValueError(
            "`workdirs` must be one or more runs, or `numbers` a file to draw. "
            f"Received: --workdirs={FLAGS.workdirs}, --numbers={FLAGS.numbers}"
        )
    if FLAGS.workdirs:
        several_runs.check_different("workdirs", FLAGS.workdirs, "runs")
        _labels(FLAGS.workdirs)
    if len(FLAGS.numbers or []) > 1 and FLAGS.picture != "learning_curves":
        raise ValueError(
            "`numbers` must be one file, or --picture=learning_curves. "
            f"Received: --numbers={','.join(FLAGS.numbers)}, "
            f"--picture={FLAGS.picture}"
        )
    for name in ("layers", "heads"):
        if FLAGS[name].value is not None:
            several_runs.numbers(name, int)


def _labels(paths):
    """Returns the names of runs; of learning curves some may be the same."""
    return several_runs.labels(paths, FLAGS.picture == "learning_curves")


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


# === Numbers of runs ===


@dataclasses.dataclass
class _Run:
    """Holds a model and the facts about it to write as JSON."""

    model: object
    facts: dict
    reset_documents: bool

    @property
    def lengths(self):
        """Returns the segment length and the memory length."""
        return self.facts["segment_length"], self.facts["memory_length"]


def _open_runs(check=lambda model: None):
    """Returns the runs, their tokenizer, facts about the text, and the split.

    `check` is called with each model and raises if it cannot be measured.
    """
    paths = FLAGS.workdirs
    labels = several_runs.labels(paths)
    workdirs, configs, tokenizer = several_runs.open_group(paths)
    _, text, split = several_runs.prepare_split(paths, configs, tokenizer)
    overrides = {
        name: FLAGS[name].value
        for name in ("same_length", "clamp_length")
        if FLAGS[name].value is not None
    }
    runs = []
    # Open all runs first, so that errors come before any long computation.
    for path, label, workdir, config in zip(
        paths, labels, workdirs, configs, strict=True
    ):
        model, step = workdir.load_model(FLAGS.checkpoint, **overrides)
        check(model)
        facts = {"label": label, "workdir": path, "step": step, **overrides}
        facts |= _lengths(model.backbone, config["flags"])
        resets = config["flags"].get("reset_documents", False)
        runs.append(_Run(model, facts, resets))
    return runs, tokenizer, text, split


def _lengths(backbone, run_flags):
    """Returns the checked segment and memory lengths of a run."""
    segment_length = FLAGS.segment_length or run_flags.get("segment_length")
    check_integer("segment_length", segment_length, 1)
    backbone.check_positions(segment_length)
    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = backbone.memory_length
    backbone.check_remembers(memory_length)
    return {"segment_length": segment_length, "memory_length": memory_length}


def _progress(run, total, unit):
    return progress_bar(total, unit, run.facts["label"])


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
        for workdir, label in zip(
            workdirs, _labels(FLAGS.workdirs), strict=True
        )
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


def _measure_context_losses():
    runs, _, text, split = _open_runs()
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
                run.facts["segment_length"],
                run.facts["memory_length"],
                FLAGS.batch_size,
                show,
            )
        run.facts["nll"] = losses.mean(axis=1, dtype=float).tolist()
    return {
        **text,
        "num_positions": len(positions),
        "context_lengths": lengths,
        "models": [run.facts for run in runs],
    }


def _measure_memory_lengths():
    lengths = sorted(several_runs.numbers("memory_lengths", int))
    if len(set(lengths)) < 2:
        raise ValueError(
            "`memory_lengths` must be two or more different lengths. Received: "
            f"--memory_lengths={','.join(FLAGS.memory_lengths)}"
        )
    for length in lengths:
        check_integer("memory_lengths", length, 0)

    def check(model):
        check_attends(model)
        model.backbone.check_remembers(lengths[-1])

    runs, _, text, split = _open_runs(check)
    for run in runs:
        del run.facts["memory_length"]
        run.facts["nll"] = [
            _evaluate(run, split, length)[0]["nll"] for length in lengths
        ]
    return {
        **text,
        "max_eval_tokens": FLAGS.max_eval_tokens,
        "memory_lengths": lengths,
        "models": [run.facts for run in runs],
    }


def _measure_positions():
    runs, _, text, split = _open_runs()
    for run in runs:
        _, nll, segments = _evaluate(run, split, run.facts["memory_length"])
        run.facts |= segment_position_losses(nll, segments)
    return {
        **text,
        "max_eval_tokens": FLAGS.max_eval_tokens,
        "models": [run.facts for run in runs],
    }


def _evaluate(run, split, memory_length):
    """Returns scores, nats per token, and the segments.

    Each row first fills its memory with the text before its own part, so that
    every token is scored with a full memory.
    """
    tokens, documents = split.head(FLAGS.max_eval_tokens)
    segment_length = run.facts["segment_length"]
    segments = Segments(
        tokens,
        FLAGS.batch_size,
        segment_length,
        drop_remainder=False,
        documents=documents,
        reset_documents=run.reset_documents,
        warmup_segments=segments_in_memory(
            run.model.backbone, segment_length, memory_length
        ),
    )
    evaluator = Evaluator(
        run.model,
        tf.distribute.get_strategy(),
        FLAGS.batch_size,
        segment_length,
        memory_length,
    )
    nll = np.empty(len(tokens), np.float32)
    with _progress(run, len(segments), "segment") as show:
        scores = evaluator.evaluate(segments, None, show, nll)
    return scores, nll, segments


def _measure_attention():
    runs, tokenizer, text, split = _open_runs(_check_heads)
    start = FLAGS.start
    if start is None:
        start = len(split.tokens) // 2
    firsts = [_first_start(run, split) for run in runs]
    last = len(split.tokens) - max(run.facts["segment_length"] for run in runs)
    if not max(firsts) <= start <= last:
        raise ValueError(
            f"`start` must be from {max(firsts):,}, the tokens that fill the "
            f"memory, to {last:,}, where the last segment begins. Received: "
            f"start={start}"
        )
    for run in runs:
        length, memory_length = run.lengths
        layers, heads = _layers_and_heads(run.model.backbone)
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
    return {**text, "start": start, "models": [run.facts for run in runs]}


def _measure_attention_by_distance():
    runs, _, text, split = _open_runs(_check_heads)
    firsts = [_first_start(run, split) for run in runs]
    for run, first_start in zip(runs, firsts, strict=True):
        length, memory_length = run.lengths
        starts = spread_positions(
            len(split.tokens) - length + 1,
            -(-FLAGS.num_positions // length),
            max(1, first_start),
        )
        layers, heads = _layers_and_heads(run.model.backbone)
        with _progress(run, len(starts), "segment") as show:
            means = mean_attention_by_distance(
                run.model,
                split.tokens,
                starts,
                length,
                memory_length,
                FLAGS.batch_size,
                show,
            )
        run.facts |= {
            "layers": layers,
            "heads": heads,
            "num_segments": len(starts),
            "attention": means[layers][:, heads].mean(axis=1).tolist(),
        }
    return {**text, "models": [run.facts for run in runs]}


def _first_start(run, split):
    """Returns the first position at which the memory can be full."""
    length, memory_length = run.lengths
    start = length * segments_in_memory(
        run.model.backbone, length, memory_length
    )
    if start + length > len(split.tokens):
        raise ValueError(
            "`segment_length` and `memory_length` must fit in the text. "
            f"Received: segment_length={length}, memory_length={memory_length} "
            f"and a text of {len(split.tokens):,} tokens"
        )
    return start


def _check_heads(model):
    check_attends(model)
    check_heads(model.backbone, *_layers_and_heads(model.backbone))


def _layers_and_heads(backbone):
    """Returns the numbers of `--layers` and of `--heads`, by default all."""
    return (
        list(range(size))
        if FLAGS[name].value is None
        else several_runs.numbers(name, int)
        for name, size in (
            ("layers", backbone.num_layers),
            ("heads", backbone.num_heads),
        )
    )


def _token_label(tokenizer, token):
    """Returns a printable text of a token for an axis."""
    text = tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace")
    if tokenizer.unit in ("word", "token"):  # with a space before or after
        text = text.strip(" ")
    return text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")


# === Drawing ===


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
    steps = runs[0][name]["steps"]
    for run in runs[1:]:
        if run[name]["steps"] != steps:
            raise ValueError(
                "`labels` must be the same only for runs whose losses were "
                "measured at the same steps (--steps_per_execution, "
                f"--eval_every, --max_steps). Received: {run['label']!r} for "
                f"runs with {len(steps)} and {len(run[name]['steps'])} losses "
                f"of {name}"
            )
        if run["tokens_per_step"] != runs[0]["tokens_per_step"]:
            raise ValueError(
                "`labels` must be the same only for runs of one --batch_size "
                f"and --segment_length. Received: {run['label']!r} for runs of "
                f"{runs[0]['tokens_per_step']} and {run['tokens_per_step']} "
                "tokens per step"
            )
    scale = runs[0]["tokens_per_step"] if by_tokens else 1
    x = [step * scale for step in steps]
    nll = np.array([run[name]["nll"] for run in runs])
    curve = (x, nll.mean(axis=0).tolist())
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


def _draw_losses(varied, numbers, path):
    x = numbers[f"{varied}_lengths"]
    curves = {m["label"]: (x, m["nll"]) for m in numbers["models"]}
    unit = numbers["unit"]
    plot_losses(curves, path, f"{varied} length, {unit}s", unit, x)


def _draw_positions(numbers, path):
    curves = {m["label"]: merge_positions(m) for m in numbers["models"]}
    unit = numbers["unit"]
    count = min(min(model["num_tokens"]) for model in numbers["models"])
    x_label = (
        f"{unit}s before it in the segment\n(means over at least {count:,} "
        f"{unit}s; bands: two standard errors)"
    )
    plot_losses(curves, path, x_label, unit)


def _draw_models(plot, numbers, path):
    plot(numbers["models"], path, numbers["unit"])


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
        _measure_context_losses, functools.partial(_draw_losses, "context"),
    ),
    "memory_lengths": (
        _measure_memory_lengths, functools.partial(_draw_losses, "memory"),
    ),
    "positions": (_measure_positions, _draw_positions),
    "attention": (
        _measure_attention, functools.partial(_draw_models, plot_attention_maps)
    ),
    "attention_by_distance": (
        _measure_attention_by_distance,
        functools.partial(_draw_models, plot_attention_by_distance),
    ),
    "recl": (None, _draw_recl),
}  # fmt: skip


if __name__ == "__main__":
    running.run(main)
