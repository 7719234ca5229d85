"""What the times of a benchmark mean: speed, utilization, memory."""

import tensorflow as tf

from benchmarks.turns import take_turns
from txl_keras.training.utilization import device_memory
from txl_keras.training.utilization import memory_of
from txl_keras.training.utilization import peak_flops


def measure(contenders, peers, settings, unit, flops, dtype):
    """Lets contenders take turns at B segments of T tokens, and reports.

    Args:
        contenders: See `take_turns`.
        peers: More of them, that work in another process.
        settings: See the package.
        unit, flops, dtype: See `report`.

    Returns:
        Dictionary of `segment_length`, `step_bytes`, see `memory_of`, by
        contender of this process, and what `report` returns.
    """
    length = settings.segment_length
    times = take_turns(contenders | peers, settings.turns)
    results = report(times, unit, settings.batch_size * length, flops, dtype)
    step_bytes = {name: memory_of(call) for name, call in contenders.items()}
    for name, number in step_bytes.items():
        if number is not None:
            print(f"{name}: memory of a turn {number / 2**20:,.1f} MiB")
    return {"segment_length": length, "step_bytes": step_bytes, **results}


def report(times, unit, num_tokens, flops=None, dtype="float32"):
    """Prints a table of contenders, and returns it for JSON.

    Called when all turns are over: then the peak of memory is that of them
    all, and not of the product that the best speed is measured with.

    Args:
        times: `Times`; others are held against the first.
        unit: String, what was timed, such as `"a step"`.
        num_tokens: Integer, tokens of that.
        flops: Optional integer, operations of that: see `model_flops`.
        dtype: String, of the products whose best speed is the whole.

    Returns:
        Dictionary of `seconds`, `compile_seconds` and `tokens_per_s`, each by
        contender; `peak_bytes`, of memory in this process; and where there are
        `flops` those, `peak_flops`, and `utilization` by contender.
    """
    results = {
        **times._asdict(),
        "tokens_per_s": {
            name: num_tokens / seconds
            for name, seconds in times.seconds.items()
        },
        "peak_bytes": device_memory()["peak"],
    }
    if flops:
        best = peak_flops(dtype, tf.distribute.get_strategy())
        results |= {
            "flops": flops,
            "peak_flops": best,
            "utilization": {
                name: flops / seconds / best
                for name, seconds in times.seconds.items()
            },
        }
    _print(results, unit)
    if flops:
        print(
            f"{flops / 1e9:.3g} GFLOP {unit}; the best product of {dtype} "
            f"does {best / 1e9:,.0f} GFLOP/s"
        )
    print(f"Memory of the process {results['peak_bytes'] / 2**20:,.0f} MiB")
    return results


def _print(results, unit):
    utilization = results.get("utilization")
    width = max(14, len(f"ms {unit}"))
    print(
        f"{'':24} {f'ms {unit}':>{width}} {'times':>7} {'tokens/s':>10} "
        + (f"{'utilization':>12} " if utilization else "")
        + f"{'compile s':>10}"
    )
    ours = next(iter(results["seconds"].values()))
    for name, seconds in results["seconds"].items():
        print(
            f"{name:24} {1e3 * seconds:{width},.2f} {seconds / ours:7.2f} "
            f"{results['tokens_per_s'][name]:10,.0f} "
            + (f"{utilization[name]:12.3f} " if utilization else "")
            + f"{results['compile_seconds'][name]:10.1f}"
        )
