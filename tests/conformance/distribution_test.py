"""Any number of replicas and workers is one; a resumed run never stopped.

Here Adam on one, two replicas and two workers; with `-m large` the other
optimizers, four replicas, and runs that go on, minutes of work.
"""

import json
import shutil

import numpy as np
import pytest
from factories import tensors_of
from workers import start
from workers import tf_configs

from txl_keras.extending import registered

ALL_OPTIMIZERS = ("adam", "adamw", "lamb", "muon", "sgd")
# Of the script: the rows of the batch, the variables of its memory (states and
# valid lengths of a block), and where it saves.
BATCH_SIZE, NUM_MEMORY_VARIABLES, HALF, WHOLE = 8, 2, 17, 50
# Of all tests but those of other models and optimizers, which have two.
ONE_BLOCK = "--num_layers=1"
large = pytest.mark.large


def printed_by(process):
    """The JSON line that a process prints."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def start_training(replicas, directory, *flags):
    return start("train_tiny.py", directory, f"--replicas={replicas}", *flags)


def workers_of(directory, *flags):
    """Returns what each of two workers prints."""
    processes = [
        start("train_tiny.py", directory, *flags, TF_CONFIG=config)
        for config in tf_configs()
    ]
    return [printed_by(process)["workers"] for process in processes]


def memory_of(directory):
    """What the newest checkpoint holds of memory, by variable."""
    tensors = tensors_of(directory / f"ckpt-{WHOLE}")
    return {n: x for n, x in tensors.items() if n.startswith("memory/")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder):
    """Results on one replica and on two; `folder` has a folder of each."""
    flags = ONE_BLOCK, "--run=adam,documents"
    return printed_by(start_training("1,2", folder, *flags))


@pytest.fixture(scope="module")
def worker_runs(folder):
    """The same of two workers."""
    return workers_of(folder, ONE_BLOCK, "--run=adam,documents")


def resume_all(of, replicas, folder, *flags):
    """Processes that need nothing of each other run side by side."""
    processes = {}
    for number in replicas:
        copy = folder / f"{number} goes on from {of}"
        shutil.copytree(folder / of / "adam/half", copy / number / "adam/half")
        processes[number] = start_training(number, copy, *flags)
    return {n: printed_by(x)[n]["adam"] for n, x in processes.items()}


def assert_alike(results, expected):
    assert len(expected["loss"]) == WHOLE
    assert results["spread"] == 0  # replicas hold the same weights
    np.testing.assert_allclose(
        results["loss"], expected["loss"], atol=1e-4, rtol=0
    )
    np.testing.assert_allclose(
        results["gradient_norm"], expected["gradient_norm"], rtol=1e-3
    )
    np.testing.assert_allclose(
        results["held_out"], expected["held_out"], atol=1e-4
    )
    # The gradients were clipped, or this would not test clipping; and it
    # learned.
    assert max(expected["gradient_norm"]) > 0.6
    assert np.mean(expected["loss"][-10:]) < expected["loss"][0] - 0.1


def test_two_replicas_have_the_losses_and_the_memory_of_one(runs, folder):
    one, two = (runs[number]["adam"] for number in ("1", "2"))
    assert_alike(two, one)
    np.testing.assert_allclose(two["token_nll"], one["token_nll"], atol=1e-4)
    assert np.ptp(one["token_nll"][1:]) > 1
    assert_same_memory(folder, "1", "2")


@large
def test_two_workers_have_the_losses_and_the_memory_of_one(
    worker_runs, runs, folder
):
    for run in worker_runs:
        assert_alike(run["adam"], runs["1"]["adam"])
    assert_same_memory(folder, "1", "workers")
    # They meet once per step: all gradients are in one collective, and with
    # them the loss. Memory stays where it is.
    of_first = worker_runs[0]["adam"]
    assert of_first["collectives"] == [of_first["weights"] + 1]


def assert_same_fit(one, two):
    assert one[1] < one[0] - 0.005
    np.testing.assert_allclose(two, one, rtol=1e-5)


def test_fit_on_two_replicas_has_the_losses_of_one(runs):
    assert_same_fit(runs["1"]["documents"], runs["2"]["documents"])


@large
def test_fit_of_a_classifier_on_two_replicas_has_the_losses_of_one(tmp_path):
    runs = printed_by(start_training("1,2", tmp_path, "--run=classifier"))
    assert_same_fit(runs["1"]["classifier"], runs["2"]["classifier"])


@large
def test_an_interrupted_fit_goes_on_on_two_replicas(runs, tmp_path):
    resumed = printed_by(start_training("2", tmp_path, "--run=backup"))
    assert resumed["2"]["backup"] == runs["2"]["documents"][1:]


@large
def test_fit_on_two_workers_has_the_losses_of_one(worker_runs, runs):
    for run in worker_runs:
        assert_same_fit(runs["1"]["documents"], run["documents"])


def assert_same_memory(folder, *names):
    """Row by row."""
    one, other = (memory_of(folder / name / "adam" / "whole") for name in names)
    assert len(one) == NUM_MEMORY_VARIABLES
    for name, value in one.items():
        assert value.shape[0] == BATCH_SIZE
        np.testing.assert_allclose(other[name], value, atol=1e-3)
    states = next(value for value in one.values() if value.ndim == 3)
    assert np.abs(states[0] - states[5]).max() > 0.1  # rows do differ


def assert_same_from_half_on(after, whole):
    for name in ("loss", "gradient_norm"):
        np.testing.assert_array_equal(after[name], whole[name][HALF:])
    np.testing.assert_array_equal(after["held_out"][1], whole["held_out"][1])


def assert_goes_on(after, resumed, whole):
    """The curve goes on, and at the switch itself nothing changes."""
    np.testing.assert_allclose(after["loss"], whole["loss"][HALF:], atol=1e-4)
    at_switch = after["held_out"][0] - resumed["held_out"][0]  # bits a token
    print(f"held-out score at the switch: {at_switch:.1e}")
    assert abs(at_switch) < 1e-6


@large
def test_a_run_goes_on_anywhere(runs, folder):
    """Bit for bit on as many replicas; else the loss goes on."""
    one, two = (runs[number]["adam"] for number in ("1", "2"))
    resumed = resume_all("2", ("1", "2", "4"), folder, ONE_BLOCK)
    assert_same_from_half_on(resumed["2"], two)
    for replicas in ("1", "4"):
        assert_goes_on(resumed[replicas], resumed["2"], two)
    alone = resume_all("1", ("1",), folder, ONE_BLOCK)["1"]
    assert_same_from_half_on(alone, one)


@large
def test_every_optimizer_does_the_same_anywhere(tmp_path):
    flag = f"--run={','.join(ALL_OPTIMIZERS)}"
    others = {}
    for replicas in ("1,2", "4"):
        others |= printed_by(start_training(replicas, tmp_path, flag))
    one = others.pop("1")
    for index, results in enumerate(workers_of(tmp_path, flag)):
        others[f"worker {index}"] = results
    for place, results in others.items():
        for optimizer in ALL_OPTIMIZERS:
            found, expected = results[optimizer], one[optimizer]
            difference = np.subtract(found["loss"], expected["loss"])
            print(f"{optimizer} on {place}: {np.abs(difference).max():.1e}")
            assert_alike(found, expected)


# Half a minute each.
@large
@pytest.mark.parametrize(
    "model",
    sorted(registered("backbone").keys() - {"lstm", "transformer_xl", "xlnet"}),
)
def test_extensions_do_the_same_anywhere_and_go_on(model, tmp_path):
    flag = f"--model={model}"
    runs = printed_by(start_training("1,2", tmp_path, flag))
    one, two = (runs[number]["adam"] for number in ("1", "2"))
    assert_alike(two, one)
    after = resume_all("2", ("2",), tmp_path, flag)["2"]
    assert_same_from_half_on(after, two)


@large
def test_an_infinite_gradient_of_one_replica_is_skipped_by_all(tmp_path):
    flags = ONE_BLOCK, "--overflow"
    results = printed_by(start_training("2", tmp_path, *flags))["2"]["adam"]
    assert np.flatnonzero(results["skipped"]).tolist() == [2]
    assert results["gradient_norm"][2] == np.inf
    assert results["loss_scale"][3] == results["loss_scale"][2] / 2
    assert results["spread"] == 0
    assert np.isfinite(results["loss"]).all()
    assert np.mean(results["loss"][-10:]) < results["loss"][0] - 0.1
