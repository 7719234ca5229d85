"""Pictures of runs."""

import tensorflow as tf
from matplotlib.figure import Figure

from txl_keras.evaluation.recl import recl_label


def plot_learning_curve(metrics, path, unit="token", scores=None):
    """Draws bits per token against steps.

    Args:
        metrics: List of dictionaries with `step` and `bits_per_token` or
            `valid`, as in metrics.jsonl.
        path: String, a PNG file, local or `gs://`.
        unit: String, what a token is.
        scores: Optional dictionary, those of valid in results.json: what
            `compressors` in it need is drawn as dashed lines.
    """
    figure = Figure(figsize=(8, 5))  # no window, no state of pyplot
    axes = figure.subplots()
    curves = {
        "train": [
            (m["step"], m["bits_per_token"])
            for m in metrics
            # Not where loss scaling skipped all steps.
            if m.get("bits_per_token") is not None
        ],
        "valid": [
            (m["step"], m["valid"]["bits_per_token"])
            for m in metrics
            if "valid" in m
        ],
    }
    lines = {}
    if scores and "compressors" in scores:
        bytes_per_token = scores["bits_per_token"] / scores["bits_per_byte"]
        lines = {
            name: value * bytes_per_token
            for name, value in scores["compressors"].items()
        }
    for label, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=label)
    for i, (name, value) in enumerate(lines.items()):
        axes.axhline(value, linestyle="--", color=f"C{i + 2}", label=name)
    axes.set_xlabel("step")
    axes.set_ylabel(f"bits per {unit}")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def plot_position_curve(curve, path, unit="token"):
    """Draws bits per token against the place of a token in its document.

    Args:
        curve: List of dictionaries, of `position_curve`.
        path: String, a PNG file, local or `gs://`.
        unit: String, what a token is.

    Example:

    ```python
    import numpy as np
    from txl_keras.evaluation import plot_position_curve, position_curve

    curve = position_curve(np.array([np.nan, 5.0, 3.0, 2.5, 2.0]))
    plot_position_curve(curve, "positions.png", "byte")
    ```
    """
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    axes.plot([bucket["bits_per_token"] for bucket in curve], marker="o")
    labels = [_label(bucket) for bucket in curve]
    axes.set_xticks(range(len(curve)), labels, rotation=45, ha="right")
    axes.set_xlabel(f"position of the {unit} in its document")
    axes.set_ylabel(f"bits per {unit}")
    axes.grid(alpha=0.3)
    _save(figure, path)


def plot_recl(results, path, unit="token"):
    """Draws relative effective context lengths, a bar for each model and r.

    Args:
        results: Dictionary from the name of a model to a dictionary from r to
            what `effective_context_lengths` says of it. All have the same r.
        path: String, a PNG file, local or `gs://`.
        unit: String, what a token is.

    Example:

    ```python
    from txl_keras.evaluation import plot_recl

    recl = {"recl": 700, "bound": None}, {"recl": 900, "bound": "lower"}
    plot_recl({"base": {0.1: recl[0]}, "large": {0.1: recl[1]}}, "recl.png")
    ```
    """
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    shares = list(next(iter(results.values())))
    width = 0.8 / len(shares)
    for i, share in enumerate(shares):
        of_models = [by_share[share] for by_share in results.values()]
        bars = axes.bar(
            [place + i * width for place in range(len(of_models))],
            [result["recl"] for result in of_models],
            width,
            label=f"r = {share:g}",
        )
        axes.bar_label(bars, map(recl_label, of_models), fontsize="small")
    middle = (len(shares) - 1) / 2 * width
    axes.set_xticks(
        [place + middle for place in range(len(results))],
        list(results),
        rotation=20,
        ha="right",
    )
    axes.set_ylabel(f"relative effective context length, {unit}s")
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)
    axes.legend()
    _save(figure, path)


def plot_slowdowns(results, path):
    """Draws how many times as long evaluation takes without memory.

    Args:
        results: List of dictionaries with `attention_length`, `slowdown` and
            `published_slowdown`, the last one or `None`: of
            train/benchmark.py, --experiment=evaluation_speed.
        path: String, a PNG file, local or `gs://`.

    Example:

    ```python
    from txl_keras.evaluation import plot_slowdowns

    sizes = {"attention_length": 800, "published_slowdown": 363}
    plot_slowdowns([{"slowdown": 500.0, **sizes}], "slowdowns.png")
    ```
    """
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    for name, label, marker in (
        ("slowdown", "measured", "o"),
        ("published_slowdown", "Dai et al., 2019, table 9", "s"),
    ):
        points = [
            (result["attention_length"], result[name])
            for result in results
            if result[name] is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker=marker, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("attention length, tokens")
    axes.set_ylabel("sliding / Transformer-XL, time a token")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def _label(bucket):
    first, last = bucket["start"], bucket["stop"] - 1
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _save(figure, path):
    with tf.io.gfile.GFile(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
