"""Pictures of runs."""

import matplotlib

matplotlib.use("Agg")  # Training machines have no screen.

from matplotlib import pyplot as plt  # noqa: E402


def plot_learning_curve(
    metrics, path, baselines=None, unit="bits per character"
):
    """Draws bits per character, or per token, against steps.

    Args:
        metrics: List of dictionaries with `step`, `bits_per_character` and,
            where it was measured, `valid`, as in metrics.jsonl.
        path: String, a PNG file.
        baselines: Optional dictionary from a name to the bits per character
            that something else needs, drawn as dashed lines.
        unit: String, the label of what is drawn.
    """
    figure, axes = plt.subplots(figsize=(8, 5))
    curves = {
        "train": [(m["step"], m["bits_per_character"]) for m in metrics],
        "valid": [
            (m["step"], m["valid"]["bits_per_character"])
            for m in metrics
            if "valid" in m
        ],
    }
    for label, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=label)
    for i, (name, value) in enumerate((baselines or {}).items()):
        axes.axhline(value, linestyle="--", color=f"C{i + 2}", label=name)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
