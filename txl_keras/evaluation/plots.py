"""Pictures of runs."""

import tensorflow as tf
from matplotlib.figure import Figure


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
    with tf.io.gfile.GFile(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
