"""Plots of training runs and evaluations."""

import os

import numpy as np
import tensorflow as tf
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

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
    """Plots bits per token against training steps."""
    # `metrics` are the lines of metrics.jsonl; bits per byte, if there are any,
    # are the axis on the right. `scores`, those of valid in results.json, may
    # have `compressors`, which become lines.
    figure, axes = _figure("step", f"bits per {unit}")
    for label, curve in report.learning_curve(metrics).items():
        axes.plot(
            curve["steps"], [*map(bits_per_token, curve["nll"])], label=label
        )
    scored = [line.get("valid", line) for line in metrics]
    sizes = [
        line["bits_per_token"] / line["bits_per_byte"]
        for line in (*scored, scores or {})
        if line.get("bits_per_byte")
    ]
    for i, (name, value) in enumerate(
        ((scores or {}).get("compressors") or {}).items()
    ):
        axes.axhline(
            value * sizes[-1], linestyle="--", color=f"C{i + 2}", label=name
        )
    axes.legend()
    if sizes and unit != "byte":
        axes.secondary_yaxis(
            "right",
            functions=(lambda x: x / sizes[-1], lambda x: x * sizes[-1]),
        ).set_ylabel("bits per byte")
    _save(figure, path)


def plot_recl(models, path, unit="token"):
    """Plots effective context lengths, one bar per model and r."""
    # A model has a `label` and `recl`, a list of the results of
    # `effective_context_lengths`, each with its `top_r`.
    figure, axes = _figure("", f"relative effective context length, {unit}s")
    results = [*zip(*(model["recl"] for model in models), strict=True)]
    width = 0.8 / len(results)
    places = np.arange(len(models))
    for i, of_share in enumerate(results):
        bars = axes.bar(
            places + i * width,
            [result["recl"] for result in of_share],
            width,
            label=f"r = {of_share[0]['top_r']:g}",
        )
        axes.bar_label(bars, map(recl_label, of_share), fontsize="small")
    axes.set_xticks(
        places + (len(results) - 1) / 2 * width,
        [model["label"] for model in models],
        rotation=20,
        ha="right",
    )
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.legend()
    _save(figure, path)


def plot_learning_curves(models, path, unit="token", by_tokens=False):
    """Plots the losses of several runs; those of one label have one colour."""
    # A model has a `label`; `train` and `valid`, dictionaries of `steps` and
    # `nll`; and, to plot by tokens, `tokens_per_step`.
    name, convert = report.measure(unit)
    figure, axes = _figure(f"{unit}s read" if by_tokens else "step", name)
    indices, losses = {}, {"train": [], "valid": []}
    for model in models:
        label = model["label"]
        is_first = label not in indices
        index = indices.setdefault(label, len(indices))
        mark = {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 4}
        for split, style in (
            ("train", {"alpha": 0.5, "linewidth": 1}), ("valid", mark)
        ):  # fmt: skip
            x, nll = model[split]["steps"], model[split]["nll"]
            if by_tokens:
                x = np.multiply(x, model["tokens_per_step"])
            text = f"{label}, {split}" if is_first and nll else None
            _draw_curve(axes, index, (x, nll), text, convert, **style)
            losses[split] += map(convert, nll)
    if name == "ppl":  # it starts at about the size of the vocabulary
        axes.set_yscale("log")
    elif losses["valid"]:  # these, and not the first steps, fill the picture
        lowest = min(losses["train"] + losses["valid"])
        axes.set_ylim(0.95 * lowest, 1.1 * max(losses["valid"]))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.legend()
    _save(figure, path)


def plot_losses(curves, path, x_label, unit, ticks):
    """Plots losses of several models on a logarithmic x axis."""
    # The values of `curves`: see `_draw_curve`. x is at least 0 and ascending.
    name, convert = report.measure(unit)
    figure, axes = _figure(x_label, name)
    for i, (label, curve) in enumerate(curves.items()):
        has_marks = len(curve[0]) <= _MAX_MARKS
        marker = _MARKERS[i % len(_MARKERS)] if has_marks else None
        _draw_curve(axes, i, curve, label, convert, marker=marker)
    positive = [n for x, *_ in curves.values() for n in x if n > 0]
    first = min(positive, default=1)
    # Linear below the smallest positive x, because x may be 0.
    axes.set_xscale("symlog", base=2, linthresh=first)
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
    length, num_keys = np.max([m["maps"].shape[-2:] for m in models], axis=0)
    # Up to _MAX_MARKS, each key has a label.
    width = max(8 / num_columns, 0.14 * min(num_keys, _MAX_MARKS))
    height = max(width * length / num_keys, 1.5) + 0.4
    figure = Figure(
        figsize=(num_columns * width + 1.5, len(rows) * height + 1),
        layout="constrained",
    )
    grid = figure.subplots(len(rows), num_columns, squeeze=False)
    for panels, (model, i) in zip(grid, rows, strict=True):
        for axes in panels[len(model["heads"]) :]:
            axes.set_axis_off()
        for axes, head, attention in zip(
            panels, model["heads"], model["maps"][i], strict=False
        ):
            image = _draw_map(axes, attention, model["tokens"])
            axes.set_title(f"head {head}", fontsize="small")
            if i == len(model["layers"]) - 1:
                memory = "memory | " if np.less(*attention.shape) else ""
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
        num_layers, num_heads, num_keys = of_model.shape
        image = axes.imshow(
            of_model.reshape(-1, num_keys)[:, ::-1],
            extent=(1 - num_keys - 0.5, 0.5, num_layers, 0),
            norm=LogNorm(1e-4, 1),
            aspect="auto",
            interpolation="nearest",
        )
        axes.set_yticks(
            np.arange(num_layers) + 0.5, [f"layer {i}" for i in model["layers"]]
        )
        axes.set_title(f"{model['label']}, {num_heads} heads per layer")
        axes.set_xlabel(f"key, {unit}s from the query")
    figure.colorbar(image, ax=grid, label="mean probability", extend="min")
    _save(figure, path)


def plot_statistics(counts, cutoffs, lengths, path):
    """Plots how often tokens occur, and the lengths of documents by split."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    frequencies, documents = figure.subplots(1, 2)
    ranked = np.sort(counts[counts > 0])[::-1]
    frequencies.loglog(np.arange(1, len(ranked) + 1), ranked)
    for cutoff in cutoffs:
        frequencies.axvline(cutoff, linestyle=":", color="gray")
    frequencies.set(
        title=f"Tokens of train ({len(ranked):,} different ones)",
        xlabel="rank" + "; dotted: cutoffs" * bool(cutoffs),
        ylabel="occurrences",
    )
    longest = max(sizes.max() for sizes in lengths.values())
    bins = np.geomspace(1, longest + 1, 50)
    for split, sizes in lengths.items():
        # Shares, because the splits differ in size.
        shares = np.full(len(sizes), 1 / len(sizes))
        documents.hist(
            sizes, bins, weights=shares, histtype="step", label=split
        )
    documents.set(
        title="Documents", xlabel="tokens", ylabel="share", xscale="log"
    )
    documents.legend()
    _save(figure, path)


def _draw_curve(axes, index, curve, label, convert, **style):
    """Draws a tuple of lists: x, nats and maybe the bounds of a band."""
    x, nll, *band = ([*curve[0]], *([*map(convert, y)] for y in curve[1:]))
    color = _COLORS[index % len(_COLORS)]
    axes.plot(x, nll, color=color, label=label, **style)
    if band:
        axes.fill_between(x, *band, color=color, alpha=0.2, lw=0)


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


def _save(figure, path):
    format = os.path.splitext(path)[1].removeprefix(".")
    with tf.io.gfile.GFile(path, "wb") as file:
        figure.savefig(file, format=format, dpi=120, bbox_inches="tight")
