"""Measures how time and memory of training grow with T, M, L and B.

Each point runs in a process of its own, because the peak memory of a process
never falls. Only one size at a time differs from the flags.

Letters: `B` batch, `T` segment, `M` memory, `L` layers.
"""

import contextlib
import io

from absl import flags

from benchmarks import training
from benchmarks.model import build_model
from benchmarks.training import BARE_ATTENTIONS
from benchmarks.training import bare_names
from txl_keras.evaluation.plots import plot_growth
from txl_keras.scripts.running import in_a_child

FLAGS = flags.FLAGS

# Each size that is varied, and the flag that lists its values.
_POINTS = {
    "segment_length": "segment_lengths",
    "memory_length": "memory_lengths",
    "num_layers": "layer_counts",
    "batch_size": "batch_sizes",
}


def run(model, settings, peer=None, save=lambda results: None):
    """Measures all points; `save` gets the results so far after each."""
    results = []
    found = {
        "segment_length": settings.segment_length,
        "results": results,
    }
    contenders = [
        name for name in settings.contenders if name not in BARE_ATTENTIONS
    ]
    contenders += bare_names(model, settings)
    if not contenders:
        raise ValueError(
            "`contenders` must include one that supports this model, such as "
            f"txl_keras. Received: {', '.join(settings.contenders)}"
        )
    for name, sizes in _POINTS.items():
        for size in sorted(set(getattr(settings, sizes))):
            for contender in contenders:
                point = in_a_child(
                    measure_point, {name: size, "contenders": [contender]}
                )
                results += [{"by": name, "size": size, **point}]
                _print(results[-1])
                save(found)
    if settings.picture:
        plot_growth(results, settings.picture)
        print(f"Written to {settings.picture}")
    return found


def measure_point(changes):
    """Measures the training step of one contender in this process."""
    for name, value in changes.items():
        FLAGS[name].value = value
    model = build_model(FLAGS)
    with contextlib.redirect_stdout(io.StringIO()):
        found = training.run(model, FLAGS)
    ((name, _),) = found["seconds"].items()
    return {
        "contender": name,
        **{
            key: found[key][name]
            for key in (
                "seconds",
                "spread",
                "compile_seconds",
                "utilization",
                "step_bytes",
            )
        },
        "peak_bytes": found["peak_bytes"],
        "peak_flops": found["peak_flops"],
    }


def _print(result):
    of_step = result["step_bytes"]
    least, greatest = (1e3 * bound for bound in result["spread"])
    grown = "unknown" if of_step is None else f"{of_step / 2**20:,.1f} MiB"
    print(
        f"{result['by']}={result['size']:<6} {result['contender']:14} "
        f"{1e3 * result['seconds']:10,.1f} ms ({least:,.1f} to "
        f"{greatest:,.1f}), utilization "
        f"{result['utilization']:.3f} of {result['peak_flops'] / 1e9:,.0f} "
        f"GFLOP/s, memory {grown} per step, "
        f"{result['peak_bytes'] / 2**20:,.0f} MiB in the process",
        flush=True,
    )
