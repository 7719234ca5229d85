"""Every replica reads its own rows in order, however many replicas there are.

Tokens are their own positions, so what was read says where it was read.
"""

import json

import numpy as np
import pytest
from print_rows import BATCH_SIZE
from print_rows import FIRST_STEP
from print_rows import NUM_STEPS
from print_rows import NUM_TOKENS
from print_rows import ORDERS
from print_rows import RESUMED_AT
from print_rows import SEGMENT_LENGTH
from print_rows import make_segments
from workers import start
from workers import tf_configs

SCRIPT = "print_rows.py"
REPLICAS = [1, 2, 4]
pytestmark = pytest.mark.large
TIMEOUT = 300


def start_workers():
    """Two processes of one replica each, that make one strategy."""
    return [start(SCRIPT, 2, TF_CONFIG=config) for config in tf_configs()]


@pytest.fixture(scope="module")
def printed():
    """What processes printed: a list, one a worker, by how they ran."""
    running = {replicas: [start(SCRIPT, replicas)] for replicas in REPLICAS}
    running["workers"] = start_workers()
    processes = [each for group in running.values() for each in group]
    try:
        outputs = {
            each: each.communicate(timeout=TIMEOUT) for each in processes
        }
    finally:
        for each in processes:
            each.kill()
    for each, (_, errors) in outputs.items():
        assert each.returncode == 0, errors[-3000:]
    return {
        how: [json.loads(outputs[each][0].splitlines()[-1]) for each in group]
        for how, group in running.items()
    }


def parts_by_step(printed, how, run):
    """The parts of all replicas on all workers, a list for each step."""
    workers = [worker[run] for worker in printed[how]]
    return [sum(parts, []) for parts in zip(*workers, strict=True)]


def by_row(parts, key):
    """An array with the rows of the parts at their places in the batch."""
    rows = {}
    for part in parts:
        for i, value in enumerate(part[key]):
            rows[part["first_row"] + i] = value
    assert sorted(rows) == list(range(BATCH_SIZE))
    return np.array([rows[row] for row in range(BATCH_SIZE)])


HOWS = [*REPLICAS, "workers"]


@pytest.mark.parametrize("how", HOWS)
def test_a_replica_has_the_same_rows_in_every_step(how, printed):
    replicas = 2 if how == "workers" else how
    for run in [*ORDERS, "resumed"]:
        for worker, steps in enumerate(printed[how]):
            local = replicas // len(printed[how])
            for parts in steps[run]:
                first_rows = [part["first_row"] for part in parts]
                rows = BATCH_SIZE // replicas
                first = worker * local * rows
                assert first_rows == [first + i * rows for i in range(local)]
                assert {len(part["inputs"]) for part in parts} == {rows}


@pytest.mark.parametrize("how", HOWS)
def test_rows_are_read_in_order_and_begin_anew_after_an_epoch(how, printed):
    """The default order, told without the code that is tested."""
    steps = parts_by_step(printed, how, "sequential")
    assert len(steps) == NUM_STEPS
    begins = np.array(
        [r * (NUM_TOKENS - 1) // BATCH_SIZE for r in range(BATCH_SIZE)]
    )
    steps_per_epoch = (NUM_TOKENS - 1) // BATCH_SIZE // SEGMENT_LENGTH
    epochs = set()
    for step, parts in enumerate(steps, FIRST_STEP):
        epoch, segment = divmod(step, steps_per_epoch)
        epochs.add(epoch)
        first = begins + segment * SEGMENT_LENGTH
        expected = first[:, None] + np.arange(SEGMENT_LENGTH)
        np.testing.assert_array_equal(by_row(parts, "inputs"), expected)
        np.testing.assert_array_equal(by_row(parts, "targets"), expected + 1)
        assert (by_row(parts, "weights") == 1).all()
        assert (by_row(parts, "reset") == (segment == 0)).all()
    assert len(epochs) == 3


@pytest.mark.parametrize("how", HOWS)
def test_a_new_iterator_at_a_step_goes_on_with_the_same_rows(how, printed):
    whole = parts_by_step(printed, how, "sequential")
    resumed = parts_by_step(printed, how, "resumed")
    assert resumed == whole[RESUMED_AT - FIRST_STEP :]


@pytest.mark.parametrize("order", ORDERS)
def test_all_numbers_of_replicas_read_the_same_rows(order, printed):
    segments = make_segments(order)
    assert FIRST_STEP < len(segments) < FIRST_STEP + NUM_STEPS
    for how in HOWS:
        steps = parts_by_step(printed, how, order)
        for step, parts in enumerate(steps, FIRST_STEP):
            expected = segments.batch(step)
            total = expected.pop("num_targets")
            assert {part["num_targets"] for part in parts} == {total}
            assert by_row(parts, "weights").sum() == total
            for key, value in expected.items():
                np.testing.assert_array_equal(by_row(parts, key), value)
