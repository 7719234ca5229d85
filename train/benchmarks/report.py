"""Reports of benchmarks: speed, utilization and memory."""

import tensorflow as tf

from benchmarks.turns import take_turns
from txl_keras.training.utilization import device_memory
from txl_keras.training.utilization import memory_of
from txl_keras.training.utilization import peak_flops


def measure(contenders, peers, settings, unit, flops, dtype):
    """Times contenders on `B` segments of `T` tokens and reports results."""
    # `peers` are contenders in another process, whose memory is not measured.
    length = settings.segment_length
    times = take_turns(contenders | peers, settings.turns)
    results = report(times, unit, settings.batch_size * length, flops, dtype)
    step_bytes = {name: memory_of(call) for name, call in contenders.items()}
    for name, number in step_bytes.items():
        if number is not None:
            print(f"{name}: {number / 2**20:,.1f} MiB of memory per turn")
    return {"segment_length": length, "step_bytes": step_bytes, **results}


def report(times, unit, num_tokens, flops=None, dtype="float32"):
    """Prints a table of contenders and returns it as a dictionary for JSON."""
    # Must be called after all turns: measuring the peak matmul speed raises the
    # peak memory of the process.
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
            f"{flops / 1e9:.3g} GFLOP {unit}; the fastest {dtype} matmul "
            f"reaches {best / 1e9:,.0f} GFLOP/s"
        )
    peak = results["peak_bytes"] / 2**20
    print(f"Peak memory of the process {peak:,.0f} MiB")
    return results


def _print(results, unit):
    utilization = results.get("utilization")
    width = max(14, len(f"ms {unit}"))
    print(
        f"{'':24} {f'ms {unit}':>{width}} {'min to max':>18} {'times':>7} "
        f"{'tokens/s':>10} "
        + (f"{'utilization':>12} " if utilization else "")
        + f"{'compile s':>10}"
    )
    ours = next(iter(results["seconds"].values()))
    for name, seconds in results["seconds"].items():
        least, greatest = (1e3 * bound for bound in results["spread"][name])
        print(
            f"{name:24} {1e3 * seconds:{width},.2f} "
            f"{f'{least:,.2f} to {greatest:,.2f}':>18} {seconds / ours:7.2f} "
            f"{results['tokens_per_s'][name]:10,.0f} "
            + (f"{utilization[name]:12.3f} " if utilization else "")
            + f"{results['compile_seconds'][name]:10.1f}"
        )
