"""Pictures of runs."""

import matplotlib

matplotlib.use("Agg")  # Training machines have no screen.

from matplotlib import pyplot as plt  # noqa: E402


def plot_learning_curve(metrics, path, unit="token", scores=None):
    """Draws bits per token against steps.

    Args:
        metrics: List of dictionaries with `step`, `bits_per_token` and, where
            it was measured, `valid`, as in metrics.jsonl.
        path: String, a PNG file.
        unit: String, what a token is.
        scores: Optional dictionary, those of valid in results.json, for
            dashed lines: what the compressors in it need.
    """
    figure, axes = plt.subplots(figsize=(8, 5))
    curves = {
        "train": [(m["step"], m["bits_per_token"]) for m in metrics],
        "valid": [
            (m["step"], m["valid"]["bits_per_token"])
            for m in metrics
            if "valid" in m
        ],
    }
    lines = {}
    if scores:
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
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
