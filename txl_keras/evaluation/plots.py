"""Plots of training runs and evaluations.

`numbers` are the content of a JSON file of `txl plot`, or more. They have
`unit`, the name of a token, and `models`, each with a `label` and results.
"""

import os

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from txl_keras.data.corpora.files import written_when_complete
from txl_keras.evaluation import report
from txl_keras.evaluation.recl import recl_label
from txl_keras.metrics import bits_per_token

FORMATS = ("png", "svg", "pdf")
# The palette of Okabe and Ito, 2008, which colour-blind people can distinguish,
# without its yellow, which is too pale on white.
_COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
_MARKERS = "osD^vP*"
_MAX_MARKS = 48  # points with a marker, or tokens with a label, along an axis


def plot_learning_curve(metrics, path, unit="token", scores=None):
    """Plots bits per token against steps, with compressors' scores."""
    # `metrics` are the lines of metrics.jsonl, `scores` are for valid.
    figure, axes = _figure("step", f"bits per {unit}")
    for label, curve in report.learning_curve(metrics).items():
        bits = [*map(bits_per_token, curve["nll"])]
        axes.plot(curve["steps"], bits, label=label)
    if scores and scores.get("bits_per_byte"):
        size = scores["bits_per_token"] / scores["bits_per_byte"]
        for i, (name, bits) in enumerate(scores["compressors"].items(), 2):
            axes.axhline(bits * size, ls="--", color=f"C{i}", label=name)
    axes.legend()
    _save(figure, path)


def plot_recl(numbers, path):
    """Plots effective context lengths, one bar per model and r."""
    # A model's `recl` is a list of results of `effective_context_lengths`, each
    # with its `top_r`.
    models, unit = numbers["models"], numbers["unit"]
    figure, axes = _figure("", f"relative effective context length, {unit}s")
    places = np.arange(len(models))
    width = 0.8 / len(models[0]["recl"])
    for i, results in enumerate(zip(*(m["recl"] for m in models), strict=True)):
        bars = axes.bar(
            places - 0.4 + i * width,
            [result["recl"] for result in results],
            width,
            align="edge",
            label=f"r = {results[0]['top_r']:g}",
        )
        axes.bar_label(bars, map(recl_label, results), fontsize="small")
    labels = [model["label"] for model in models]
    axes.set_xticks(places, labels, rotation=20, ha="right")
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.legend()
    _save(figure, path)


def plot_learning_curves(numbers, path):
    """Plots the losses of several runs; runs of one label share a colour."""
    # A model has `train` and `valid`, dictionaries of `steps` and `nll`; and
    # `tokens_per_step`.
    models, unit = numbers["models"], numbers["unit"]
    labels = [*dict.fromkeys(model["label"] for model in models)]
    name, convert = report.measure(unit)
    figure, axes = _figure(f"{unit}s read", name)
    for model in models:
        style = _style(labels.index(model["label"]))
        for split, of_split in (
            ("train", {"marker": "", "alpha": 0.5, "linewidth": 1}),
            ("valid", {"markersize": 4}),
        ):
            axes.plot(
                np.multiply(model[split]["steps"], model["tokens_per_step"]),
                [*map(convert, model[split]["nll"])],
                label=f"{model['label']}, {split}",
                **style | of_split,
            )
    valid = [nll for model in models for nll in model["valid"]["nll"]]
    if name == "ppl":  # it starts at about the size of the vocabulary
        axes.set_yscale("log")
    elif valid:  # these losses, not the first steps, should fill the picture
        axes.set_ylim(top=1.1 * convert(max(valid)))
    axes.xaxis.set_major_formatter(EngFormatter())
    lines = {line.get_label(): line for line in axes.lines}  # seeds have one
    axes.legend(handles=lines.values())
    _save(figure, path)


def plot_losses(curves, path, x_label, unit, ticks):
    """Plots losses of several models on a logarithmic x axis."""
    # The values of `curves` are lists: x, at least 0 and ascending; nats; and
    # optionally the bounds of a band.
    name, convert = report.measure(unit)
    figure, axes = _figure(x_label, name)
    for i, (label, (x, *losses)) in enumerate(curves.items()):
        nll, *band = ([*map(convert, values)] for values in losses)
        marker = {} if len(x) <= _MAX_MARKS else {"marker": ""}
        axes.plot(x, nll, label=label, **_style(i) | marker)
        if band:
            color = axes.lines[-1].get_color()
            axes.fill_between(x, *band, color=color, alpha=0.2, lw=0)
    positive = [n for x, *_ in curves.values() for n in x if n > 0]
    # Linear below the smallest positive x, because x may be 0.
    axes.set_xscale("symlog", base=2, linthresh=min(positive, default=1))
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.legend()
    _save(figure, path)


def plot_context_losses(numbers, path):
    """Plots the losses of several models by context length."""
    x, unit = numbers["context_lengths"], numbers["unit"]
    curves = {m["label"]: (x, m["nll"]) for m in numbers["models"]}
    plot_losses(curves, path, f"context length, {unit}s", unit, x)


def plot_positions(numbers, path):
    """Plots the losses of several models by position in the segment."""
    # A model's `positions` are a result of `position_curve`.
    models, unit = numbers["models"], numbers["unit"]
    curves, smallest = {}, []
    for model in models:
        starts, nll, errors, counts = np.transpose(
            [
                [b["start"], b["nll"], b["standard_error"], b["num_tokens"]]
                for b in model["positions"]
            ]
        )
        bounds = nll - 2 * errors, nll + 2 * errors
        curves[model["label"]] = starts, nll, *bounds
        smallest.append(counts.min())
    x_label = (
        f"{unit}s before it in the segment\n(means over at least "
        f"{min(smallest):,.0f} {unit}s; bands: two standard errors)"
    )
    last = max(int(starts[-1]) for starts, *_ in curves.values())
    ticks = [2**i for i in range(last.bit_length())]
    plot_losses(curves, path, x_label, unit, ticks)


def plot_attention_maps(numbers, path):
    """Plots attention maps, one row per layer and one column per head."""
    # A model has `layers` and `heads`, their numbers; `maps` of shape `(layers,
    # heads, T, S)`; and `tokens`, S strings.
    models, unit = numbers["models"], numbers["unit"]
    num_rows = [len(model["layers"]) for model in models]
    num_columns = max(len(model["heads"]) for model in models)
    length, num_keys = np.max([m["maps"].shape[-2:] for m in models], axis=0)
    # Up to _MAX_MARKS, each key has a label.
    width = max(8 / num_columns, 0.14 * min(num_keys, _MAX_MARKS))
    height = max(width * length / num_keys, 1.5) + 0.4
    size = num_columns * width + 1.5, sum(num_rows) * height + 1
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subfigures(len(models), 1, False, height_ratios=num_rows)
    for part, model in zip(parts[:, 0], models, strict=True):
        shape = len(model["layers"]), len(model["heads"])
        grid = part.subplots(*shape, squeeze=False)
        for (i, j), axes in np.ndenumerate(grid):
            image = _draw_map(axes, model["maps"][i][j], model["tokens"])
            axes.set_title(f"head {model['heads'][j]}", fontsize="small")
        for layer, axes in zip(model["layers"], grid[:, 0], strict=True):
            label = f"{model['label']}, layer {layer}"
            axes.set_ylabel(f"{label}\nquery ({unit})")
        memory = "memory | " if np.less(*model["maps"].shape[-2:]) else ""
        for axes in grid[-1]:
            axes.set_xlabel(f"{memory}segment: key ({unit})")
        part.colorbar(image, ax=grid, label="probability", extend="min")
    _save(figure, path)


def _style(index):
    """Returns the colour and the marker of a curve."""
    i = index % len(_COLORS)
    return {"color": _COLORS[i], "marker": _MARKERS[i]}


def _draw_map(axes, attention, tokens):
    """Draws a map `(T, S)` with its tokens and returns the image."""
    length, num_keys = attention.shape
    num_memory = num_keys - length
    image = axes.imshow(
        # Grey is a probability of 0, for example of a masked key.
        np.ma.masked_equal(attention, 0),
        # The axes count positions in the segment; memory is negative.
        extent=(-num_memory - 0.5, length - 0.5, length - 0.5, -0.5),
        norm=LogNorm(1e-3, 1),
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_facecolor("lightgrey")
    if num_memory:
        axes.axvline(-0.5, color=_COLORS[1], linewidth=1.5)
    if num_keys <= _MAX_MARKS:
        font = {"fontsize": "x-small", "family": "monospace"}
        font["parse_math"] = False  # a `$` in a text does not start a formula
        rotation = 90 if max(map(len, tokens)) > 2 else 0
        places = range(-num_memory, length)
        axes.set_xticks(places, tokens, rotation=rotation, **font)
        axes.set_yticks(range(length), tokens[num_memory:], **font)
    return image


def _figure(x_label, y_label):
    """Creates a figure of one panel, without the global state of pyplot."""
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure, path):
    format = os.path.splitext(path)[1].removeprefix(".")
    with written_when_complete(path) as file:
        figure.savefig(file, format=format, dpi=120, bbox_inches="tight")
