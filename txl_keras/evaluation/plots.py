"""Pictures of runs."""

from matplotlib.figure import Figure


def plot_learning_curve(metrics, path, unit="token", scores=None):
    """Draws bits per token against steps.

    Args:
        metrics: List of dictionaries with `step`, `bits_per_token` and, where
            it was measured, `valid`, as in metrics.jsonl.
        path: String, a PNG file.
        unit: String, what a token is.
        scores: Optional dictionary, those of valid in results.json: what
            `compressors` in it need is drawn as dashed lines.
    """
    figure = Figure(figsize=(8, 5))  # no window, no state of pyplot
    axes = figure.subplots()
    curves = {
        "train": [(m["step"], m["bits_per_token"]) for m in metrics],
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
    figure.savefig(path, dpi=120, bbox_inches="tight")
