"""Estimates of scaling, against numbers computed by hand."""

import dataclasses
import json
import pathlib

import pytest

from txl_keras.tpu.scaling import Assumptions
from txl_keras.tpu.scaling import all_reduce_seconds
from txl_keras.tpu.scaling import checkpoint_bytes
from txl_keras.tpu.scaling import estimate
from txl_keras.tpu.scaling import fixed_bytes
from txl_keras.tpu.scaling import nearest_report
from txl_keras.tpu.scaling import num_links
from txl_keras.tpu.scaling import scaled
from txl_keras.tpu.scaling import sent_bytes
from txl_keras.tpu.slices import names
from txl_keras.tpu.slices import tpu_type

ROOT = pathlib.Path(__file__).parents[2]
EXACT = Assumptions(achieved_share=1.0, link_share=1.0, overlap=0.0)


def report(**changes):
    """Returns a report of 3 rows, with few digits."""
    return {
        "experiment": "small",
        "chip": "v4",
        "attention_kernel": False,
        "rows": 3,
        "accumulate_steps": 1,
        "segment_length": 5,
        "weights": 7_000_000_000,
        "optimizer": 11_000_000_000,
        "memory": 600,
        "flops": 33e12,
        "hbm_bytes_accessed": 100e9,
        "model_flops": 30e12,
        "collectives": {"all-reduce": {"count": 2, "bytes": 7_200_000_000}},
    } | changes


def compiled_reports():
    path = ROOT / "tpu_configs" / "compiled.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


# === Slices ===


@pytest.mark.parametrize("name", names())
def test_the_number_in_a_name_counts_cores_or_chips(name):
    kind, _, number = name.partition("-")
    chips, replicas = tpu_type(name).num_chips, tpu_type(name).replicas
    cores = 1 if kind in ("v5litepod", "v6e") else 2
    assert chips * cores == int(number)
    assert replicas == (int(number) if kind in ("v2", "v3") else chips)


@pytest.mark.parametrize(
    "name, links",
    [
        ("v4-8", 2),  # 2x2x1: the axis of one chip has no link
        ("v4-64", 3),  # 2x4x4: no axis wraps around
        ("v5p-256", 6),  # 4x4x8: all do
        ("v5litepod-64", 2),  # 8x8
        ("v6e-128", 3),  # 8x16: the longer one does
        ("v5litepod-256", 4),  # 16x16
        ("v3-512", 2),  # 16x16, of a pod of 32x32
    ],
)
def test_links_of_the_worst_chip(name, links):
    assert num_links(tpu_type(name)) == links


# === All-reduce ===


def test_a_ring_sends_two_shares_of_what_others_have():
    # 4 chips: 3/4 of 1000 bytes to reduce, 3/4 to gather.
    assert sent_bytes(1000, tpu_type("v4-8")) == 1500
    # 256 chips of two cores each.
    assert sent_bytes(1024, tpu_type("v3-512")) == 2040


def test_all_reduce_uses_the_links_of_all_axes():
    # 16 chips in 2x2x4, 3 links of 45 GB/s, of which 80% is achieved.
    seconds = all_reduce_seconds(
        2.16e9, tpu_type("v4-32"), Assumptions(link_share=0.8)
    )
    assert seconds == pytest.approx(2 * 15 / 16 * 2.16 / (3 * 45 * 0.8))


def test_the_time_of_an_all_reduce_hardly_depends_on_the_size_of_a_mesh():
    times = [
        all_reduce_seconds(1e9, tpu_type(f"v6e-{n}"), EXACT)
        for n in (16, 32, 64)
    ]
    assert times == sorted(times)
    assert times[-1] < 1e9 * 2 / (2 * 100e9)


# === A compiled step with other rows ===


def test_weights_and_optimizer_do_not_grow_with_the_rows():
    # 9 x 7 + 2 x 11 = 85 GB are fixed; the other 15 are those of 3 rows.
    assert fixed_bytes(report()) == 85e9
    assert scaled(report(), 3) == (33e12, 100e9)
    flops, moved = scaled(report(), 4)
    assert flops == pytest.approx(44e12)
    assert moved == pytest.approx(105e9)


def test_a_step_never_moves_less_than_it_was_compiled_to_for_more_rows():
    step = report(hbm_bytes_accessed=80e9)  # less than the fixed bytes
    assert scaled(step, 1)[1] == scaled(step, 6)[1] == 80e9


# The chips that the experiment was compiled for with several rows.
@pytest.mark.parametrize("chip", ["v4", "v5e"])
def test_other_rows_agree_with_compiled_steps(chip):
    steps = [
        step
        for step in compiled_reports()
        if (step["experiment"], step["chip"]) == ("enwik8_large", chip)
        and not step["attention_kernel"]
    ]
    assert len(steps) > 1
    for given in steps:
        for wanted in steps:
            flops, moved = scaled(given, wanted["rows"])
            assert flops == pytest.approx(wanted["flops"], rel=0.07)
            compiled = wanted["hbm_bytes_accessed"]
            assert moved == pytest.approx(compiled, rel=0.1)


def test_all_gradients_are_reduced_in_float32():
    for step in compiled_reports():
        reduced = step["collectives"]["all-reduce"]["bytes"]
        assert 0 <= reduced - step["weights"] < 100


def test_the_nearest_rows_by_their_ratio():
    steps = [
        report(rows=2),
        report(rows=9, accumulate_steps=3),
        report(rows=4, chip="v6e"),
        report(rows=4, attention_kernel=True),
        report(rows=4, experiment="other"),
    ]
    assert nearest_report(steps, "small", "v4", 4) is steps[0]
    assert nearest_report(steps, "small", "v4", 5) is steps[1]
    assert nearest_report(steps, "small", "v4", 1, True) is steps[3]
    # 6 is as far from 4 as from 9.
    steps = [report(rows=9, accumulate_steps=3), report(rows=4)]
    assert nearest_report(steps, "small", "v4", 6) is steps[1]


def test_an_experiment_that_was_not_compiled_is_named():
    with pytest.raises(ValueError, match="small for v5p: add it to claims"):
        nearest_report([report()], "small", "v5p", 3)


# === A run ===


def test_a_checkpoint_has_the_memory_of_all_rows():
    # 200 bytes per row.
    assert checkpoint_bytes(report(), 24) == 18_000_000_000 + 4800


def test_a_run_by_hand():
    # 16 chips, 3 rows each: 33 / 275 = 0.12 s and 100 / 1228 = 0.081 s.
    found = estimate(
        report(),
        tpu_type("v4-32"),
        batch_size=48,
        max_steps=1000,
        feeding_rate=24_000,
        assumptions=dataclasses.replace(
            EXACT, achieved_share=0.5, overlap=0.25
        ),
    )
    assert (found.rows, found.bound_by) == (3, "flops")
    assert found.bound_seconds == pytest.approx(0.12)
    assert found.sent_bytes == pytest.approx(13.5e9)
    assert found.all_reduce_seconds == pytest.approx(0.1)
    # Feeding 240 tokens takes 10 ms of the step before.
    seconds = 0.12 / 0.5 + 0.75 * 0.1
    assert found.step_seconds == pytest.approx(seconds)
    assert found.efficiency == pytest.approx(0.24 / seconds)
    assert found.utilization == pytest.approx(30 / 275 / seconds)
    assert found.tokens_per_second == pytest.approx(2000)
    assert found.chip_hours == pytest.approx(16 * 1000 * seconds / 3600)
    assert found.hours == pytest.approx(1000 * seconds / 3600)


@pytest.mark.parametrize("feeding_rate, waiting", [(1000, 0), (50, 0.6133)])
def test_chips_wait_for_what_feeding_exceeds_a_step_by(feeding_rate, waiting):
    # 4 chips with 2 links: 66.7 ms to compute, 120 ms to reduce. 40 tokens are
    # fed in 40 or 800 ms.
    found = estimate(
        report(rows=2, flops=18.3425e12, hbm_bytes_accessed=1.0),
        tpu_type("v4-8"),
        batch_size=8,
        max_steps=10,
        feeding_rate=feeding_rate,
        assumptions=EXACT,
    )
    assert found.bound_seconds == pytest.approx(0.0667)
    assert found.step_seconds == pytest.approx(0.1867 + waiting)


def test_more_chips_are_faster_and_cost_more():
    found = [
        estimate(report(), tpu_type(f"v4-{n}"), 384, 10, 1e9, Assumptions())
        for n in (8, 16, 32, 64)
    ]
    times = [run.hours for run in found]
    costs = [run.chip_hours for run in found]
    assert times == sorted(times, reverse=True)
    assert costs == sorted(costs)
    assert all(0 < run.utilization < 0.5 for run in found)


def test_less_than_a_row_per_replica_is_an_error():
    with pytest.raises(ValueError, match="batch_size=48, 64 replicas"):
        estimate(report(), tpu_type("v6e-64"), 48, 10, 1e9, EXACT)
