"""Pictures of runs."""

import matplotlib

matplotlib.use("Agg")  # Training machines have no screen.

from matplotlib import pyplot as plt  # noqa: E402


def plot_learning_curve(metrics, path, baselines=None):
    """Draws bits per character against steps.

    Args:
        metrics: List of dictionaries with `step` and `bits_per_character`
            or `valid_bits_per_character`, as in metrics.jsonl.
        path: String, a PNG file.
        baselines: Optional dictionary from a name to the bits per character
            that something else needs, drawn as dashed lines.
    """
    figure, axes = plt.subplots(figsize=(8, 5))
    for key, label in (
        ("bits_per_character", "train"),
        ("valid_bits_per_character", "valid"),
    ):
        points = [(m["step"], m[key]) for m in metrics if key in m]
        if points:
            axes.plot(*zip(*points, strict=True), label=label)
    for i, (name, value) in enumerate((baselines or {}).items()):
        axes.axhline(value, linestyle="--", color=f"C{i + 2}", label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("bits per character")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
