"""Plots of training runs and evaluations."""

import os

import numpy as np
import tensorflow as tf
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from txl_keras.evaluation.recl import recl_label
from txl_keras.evaluation.report import learning_curve
from txl_keras.evaluation.report import measure
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
    """Plots bits per token against training steps."""
    # `metrics` are the lines of metrics.jsonl; bits per byte, if there are any,
    # are the axis on the right. `scores`, those of valid in results.json, may
    # have `compressors`, which become lines.
    figure, axes = _figure("step", f"bits per {unit}")
    lines = {}
    if scores and "compressors" in scores:
        bytes_per_token = scores["bits_per_token"] / scores["bits_per_byte"]
        lines = {
            name: value * bytes_per_token
            for name, value in scores["compressors"].items()
        }
    for label, curve in learning_curve(metrics).items():
        bits = [*map(bits_per_token, curve["nll"])]
        axes.plot(curve["steps"], bits, label=label)
    for i, (name, value) in enumerate(lines.items()):
        axes.axhline(value, linestyle="--", color=f"C{i + 2}", label=name)
    axes.legend()
    scored = [line.get("valid", line) for line in metrics]
    sizes = [
        line["bits_per_token"] / line["bits_per_byte"]
        for line in scored
        if line.get("bits_per_byte")
    ]
    if sizes and unit != "byte":
        axes.secondary_yaxis(
            "right",
            functions=(lambda x: x / sizes[-1], lambda x: x * sizes[-1]),
        ).set_ylabel("bits per byte")
    _save(figure, path)


def plot_position_curve(curve, path, unit="token"):
    """Plots the result of `position_curve`."""
    x_label = f"position of the {unit} in its document"
    figure, axes = _figure(x_label, f"bits per {unit}")
    axes.plot([bucket["bits_per_token"] for bucket in curve], marker="o")
    labels = [_label(bucket) for bucket in curve]
    axes.set_xticks(range(len(curve)), labels, rotation=45, ha="right")
    _save(figure, path)


def plot_recl(results, path, unit="token"):
    """Plots effective context lengths, one bar per model and r."""
    # `results` are those of `effective_context_lengths`, by r, by model.
    name = f"relative effective context length, {unit}s"
    figure, axes = _figure("", name)
    shares = list(next(iter(results.values())))
    width = 0.8 / len(shares)
    for i, share in enumerate(shares):
        model_results = [by_share[share] for by_share in results.values()]
        bars = axes.bar(
            [place + i * width for place in range(len(model_results))],
            [result["recl"] for result in model_results],
            width,
            label=f"r = {share:g}",
        )
        axes.bar_label(bars, map(recl_label, model_results), fontsize="small")
    middle = (len(shares) - 1) / 2 * width
    axes.set_xticks(
        [place + middle for place in range(len(results))],
        list(results),
        rotation=20,
        ha="right",
    )
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.legend()
    _save(figure, path)


def plot_learning_curves(curves, path, unit="token", x_label="step"):
    """Plots the training and validation losses of several runs."""
    # A curve has `train` and `valid`, each a tuple of lists: x; nats per token;
    # and, if these are means over several runs, the least and the greatest.
    name, convert = measure(unit)
    figure, axes = _figure(x_label, name)
    for i, (label, curve) in enumerate(curves.items()):
        x, train, *_ = curve["train"]
        x_valid, valid, *bounds = curve["valid"]
        color, marker = _style(i)
        axes.plot(
            x, [*map(convert, train)], color=color, alpha=0.5, linewidth=1,
            label=f"{label}, train",
        )  # fmt: skip
        if x_valid:
            axes.plot(
                x_valid, [*map(convert, valid)], color=color, marker=marker,
                markersize=4, label=f"{label}, valid",
            )  # fmt: skip
        if bounds:
            least, greatest = ([*map(convert, bound)] for bound in bounds)
            axes.fill_between(
                x_valid, least, greatest, color=color, alpha=0.2, lw=0
            )
    losses = {
        split: [
            convert(n) for curve in curves.values() for n in curve[split][1]
        ]
        for split in ("train", "valid")
    }
    if name == "ppl":  # it starts at about the size of the vocabulary
        axes.set_yscale("log")
    elif losses["valid"]:  # these, and not the first steps, fill the picture
        lowest = min(losses["train"] + losses["valid"])
        axes.set_ylim(0.95 * lowest, 1.1 * max(losses["valid"]))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.legend()
    _save(figure, path)


def plot_losses(curves, path, x_label, unit="token", ticks=None):
    """Plots losses of several models on a logarithmic x axis."""
    # A curve is a tuple of lists: x, at least 0 and ascending; nats per token;
    # and optionally their standard errors, of which two are drawn as a band.
    name, convert = measure(unit)
    figure, axes = _figure(x_label, name)
    for i, (label, (x, nll, *errors)) in enumerate(curves.items()):
        color, marker = _style(i)
        axes.plot(
            x, [*map(convert, nll)], color=color, label=label,
            marker=marker if len(x) <= _MAX_MARKS else None,
        )  # fmt: skip
        for error in errors:
            lower, upper = (
                [
                    convert(n + sign * 2 * e)
                    for n, e in zip(nll, error, strict=True)
                ]
                for sign in (-1, 1)
            )
            axes.fill_between(x, lower, upper, color=color, alpha=0.2, lw=0)
    first = min(n for x, *_ in curves.values() for n in x if n > 0)
    # Linear below the smallest positive x, because x may be 0.
    axes.set_xscale("symlog", base=2, linthresh=first)
    if ticks is None:
        last = max(x[-1] for x, *_ in curves.values())
        ticks = [2**i for i in range(int(last).bit_length())]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.legend()
    _save(figure, path)


def plot_attention_maps(models, path, unit="token"):
    """Plots attention maps, one row per layer and one column per head."""
    # A model has a `label`; `layers` and `heads`, their numbers; `maps` of
    # `(layers, heads, T, S)`; and `tokens`, S strings. Grey is a probability of
    # 0, such as that of a masked key.
    rows = [(model, i) for model in models for i in range(len(model["layers"]))]
    num_columns = max(len(model["heads"]) for model in models)
    num_keys = max(model["maps"].shape[-1] for model in models)
    length = max(model["maps"].shape[-2] for model in models)
    width = max(2.4, 8 / num_columns)
    if num_keys <= _MAX_MARKS:  # each key has a label
        width = max(width, 0.14 * num_keys)
    height = min(max(width * length / num_keys, 1.5), 8) + 0.4
    figure = Figure(
        figsize=(num_columns * width + 1.5, len(rows) * height + 1),
        layout="constrained",
    )
    grid = figure.subplots(len(rows), num_columns, squeeze=False)
    for panels, (model, i) in zip(grid, rows, strict=True):
        for axes in panels[len(model["heads"]) :]:
            axes.set_axis_off()
        for j, head in enumerate(model["heads"]):
            axes = panels[j]
            image = _draw_map(axes, model["maps"][i, j], model["tokens"])
            axes.set_title(f"head {head}", fontsize="small")
            if i == len(model["layers"]) - 1:
                has_memory = np.less(*model["maps"].shape[-2:])
                memory = "memory | " if has_memory else ""
                axes.set_xlabel(f"{memory}segment: key ({unit})")
        label = f"{model['label']}, layer {model['layers'][i]}"
        panels[0].set_ylabel(f"{label}\nquery ({unit})")
    figure.colorbar(
        image, ax=grid, label="attention probability", extend="min",
        aspect=40, shrink=min(1, 6 / (len(rows) * height)),
    )  # fmt: skip
    _save(figure, path)


def plot_attention_by_distance(models, path, unit="token"):
    """Plots mean attention by distance, one row per head, as appendix D."""
    # A model has a `label`; `layers` and `heads`, their numbers; and
    # `attention` of `(layers, heads, S)`, the nearest key first.
    attention = [np.asarray(m["attention"]) for m in models]
    heights = [max(2, 0.15 * a[..., 0].size) for a in attention]
    figure = Figure(figsize=(8, sum(heights) + 1), layout="constrained")
    grid = figure.subplots(
        len(models), squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    for axes, model, of_model in zip(grid, models, attention, strict=True):
        num_heads, num_keys = of_model.shape[1:]
        image = axes.imshow(
            of_model.reshape(-1, num_keys)[:, ::-1],
            extent=(1 - num_keys - 0.5, 0.5, len(model["layers"]), 0),
            norm=LogNorm(1e-4, 1),
            aspect="auto",
            interpolation="nearest",
        )
        places = np.arange(len(model["layers"])) + 0.5
        axes.set_yticks(places, [f"layer {i}" for i in model["layers"]])
        axes.set_title(f"{model['label']}, {num_heads} heads per layer")
        axes.set_xlabel(f"key, {unit}s from the query")
    figure.colorbar(image, ax=grid, label="mean probability", extend="min")
    _save(figure, path)


def _draw_map(axes, attention, tokens):
    """Draws a map `(T, S)` with its tokens and returns the image."""
    length, num_keys = attention.shape
    num_memory = num_keys - length
    image = axes.imshow(
        np.ma.masked_equal(attention, 0),
        # The axes count positions in the segment; memory is negative.
        extent=(-num_memory - 0.5, length - 0.5, length - 0.5, -0.5),
        norm=LogNorm(1e-3, 1),
        cmap="viridis",
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_facecolor("lightgrey")
    if num_memory:
        axes.axvline(-0.5, color=_COLORS[1], linewidth=1.5)
    if num_keys <= _MAX_MARKS:
        # A `$` in a text must not start a formula.
        font = {"fontsize": "x-small", "family": "monospace"}
        font["parse_math"] = False
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


def _style(index):
    """Returns the colour and the marker of a curve; either identifies it."""
    return _COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)]


def _label(bucket):
    first, last = bucket["start"], bucket["stop"] - 1
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _save(figure, path):
    format = os.path.splitext(path)[1].removeprefix(".")
    with tf.io.gfile.GFile(path, "wb") as file:
        figure.savefig(file, format=format, dpi=120, bbox_inches="tight")
