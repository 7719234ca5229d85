"""The scripts in train/, as a person runs them: in processes of their own."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

TRAIN = pathlib.Path(__file__).parents[2] / "train"
TINY = (
    "--num_layers=1",
    "--num_heads=2",
    "--hidden_dim=16",
    "--intermediate_dim=24",
    "--memory_length=12",
    "--dropout=0.1",
    "--batch_size=4",
    "--segment_length=8",
    "--eval_batch_size=3",
    "--max_steps=60",
    "--steps_per_execution=7",
    "--eval_every=25",
    "--checkpoint_every=20",
    "--learning_rate=0.01",
    "--sample_length=40",
)


def run_script(name, *flags):
    return subprocess.run(
        [sys.executable, TRAIN / name, *flags],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )


def succeed(name, *flags):
    done = run_script(name, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def metrics_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    sentences = [f"Sentence {i} says é: {i * i % 97}.\n" for i in range(900)]
    path.write_text("".join(sentences), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A finished run: its workdir and what it printed."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    flags = (f"--corpus={corpus}", f"--workdir={workdir}", *TINY)
    return workdir, succeed("main.py", *flags), flags


def test_a_run_leaves_all_it_promises(run):
    workdir, printed, _ = run
    results = json.loads((workdir / "results.json").read_text())
    test = results["test"]
    assert f"test: {test['bits_per_character']:.4f} bpc" in printed
    assert f"gzip -9 {test['compressors']['gzip -9']:.3f}" in printed
    assert (workdir / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert (workdir / "sample.txt").read_text("utf-8") in printed
    assert (workdir / "export/60/saved_model.pb").exists()
    assert (
        sorted(p.name for p in (workdir / "checkpoints").glob("*.index"))[-1]
        == "ckpt-60.index"
    )


def test_a_run_learns_and_says_so_step_by_step(run):
    metrics = metrics_of(run[0])
    steps = [line["step"] for line in metrics]
    # Loops end where an evaluation or a checkpoint is due.
    assert steps == [7, 14, 20, 25, 32, 39, 40, 47, 50, 57, 60]
    measured = [line["step"] for line in metrics if "valid" in line]
    assert measured == [25, 50, 60]
    assert metrics[-1]["valid"]["bits_per_character"] < 5
    assert metrics[0]["bits_per_character"] > 6
    rates = [line["learning_rate"] for line in metrics]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_a_finished_run_says_so_and_changes_nothing(run):
    workdir, printed, flags = run
    before = (workdir / "results.json").read_bytes()
    again = succeed("main.py", *flags)
    assert "The run is finished." in again
    assert printed.splitlines()[-1] == again.splitlines()[-1]
    assert (workdir / "results.json").read_bytes() == before


def test_a_killed_run_ends_as_if_it_had_never_been(run, tmp_path):
    whole, _, flags = run
    workdir = tmp_path / "killed"
    flags = [f for f in flags if "workdir" not in f] + [f"--workdir={workdir}"]
    process = subprocess.Popen(
        [sys.executable, TRAIN / "main.py", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # After the first checkpoint, at a step that none was written at.
    while process.poll() is None and not (workdir / "metrics.jsonl").exists():
        time.sleep(0.01)
    while process.poll() is None and len(metrics_of(workdir)) < 4:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    succeed("main.py", *flags)
    assert metrics_of(workdir) == metrics_of(whole)
    for name in ("results.json", "sample.txt"):
        assert (workdir / name).read_bytes() == (whole / name).read_bytes()


def test_evaluate_agrees_with_training_and_takes_longer_memory(run):
    workdir, _, _ = run
    trained = json.loads((workdir / "results.json").read_text())["test"]
    succeed("evaluate.py", f"--workdir={workdir}", "--batch_size=3")
    path = workdir / "evaluation_test.json"
    same = json.loads(path.read_text())
    assert same["nll"] == pytest.approx(trained["nll"], abs=1e-5)
    assert same["num_tokens"] == trained["num_tokens"]
    assert same["memory_length"] == 12

    succeed(
        "evaluate.py",
        f"--workdir={workdir}",
        "--batch_size=1",
        "--memory_length=50",
        "--same_length",
        "--clamp_length=20",
    )
    longer = json.loads(path.read_text())
    assert (longer["memory_length"], longer["clamp_length"]) == (50, 20)
    assert longer["same_length"] is True
    assert longer["num_tokens"] == trained["num_tokens"]
    assert 1e-4 < abs(longer["nll"] - trained["nll"]) < 0.5


def test_generate_writes_after_a_prompt_and_repeats_by_seed(run):
    flags = (f"--workdir={run[0]}", "--prompt=Sentence é", "--num_tokens=60")
    first = succeed("generate.py", *flags, "--seed=1", "--top_p=0.9")
    assert first.startswith("Sentence é")
    assert len(first.encode()) > 60
    again = succeed("generate.py", *flags, "--seed=1", "--top_p=0.9")
    assert first == again
    greedy = succeed("generate.py", *flags, "--temperature=0")
    assert greedy != first


def test_the_savedmodel_loads_where_there_is_only_tensorflow(run, tmp_path):
    from txl_keras.training.workdir import Workdir

    workdir = run[0]
    succeed(
        "export.py",
        f"--workdir={workdir}",
        f"--output={tmp_path / 'served'}",
        "--memory_length=9",
    )
    script = """
import sys
sys.modules["keras"] = None
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
start = loaded.signatures["initial_memory"]
outputs = {}
for batch, length in ((1, 5), (3, 4)):
    memory = start(batch_size=tf.constant(batch))
    for segment in range(3):
        ids = np.arange(batch * length).reshape(batch, length) + segment
        answer = serve(ids=tf.constant(ids, tf.int32), **memory)
        outputs[f"{batch}_{segment}"] = answer.pop("log_probs").numpy()
        memory = answer
np.savez(sys.argv[2], **outputs)
"""
    path = tmp_path / "outputs.npz"
    subprocess.run(
        [sys.executable, "-c", script, tmp_path / "served", path], check=True
    )
    outputs = np.load(path)
    model, _, _ = Workdir(str(workdir)).load_model(memory_length=9)
    for batch, length in ((1, 5), (3, 4)):
        memory = model.initial_memory(batch)
        for segment in range(3):
            ids = np.arange(batch * length).reshape(batch, length) + segment
            log_probs, memory = model.log_probs(ids, memory)
            np.testing.assert_allclose(
                outputs[f"{batch}_{segment}"], log_probs, atol=1e-5
            )


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (["--corpus=no/such/path"], ["no/such/path"]),
        (["--corpus={folder}/empty.txt"], ["empty.txt", "empty"]),
        (["--corpus={folder}/latin.txt"], ["latin.txt", "UTF-8", "3"]),
        (["--corpus={folder}/short.txt"], ["tokens", "--batch_size"]),
        (["--batch_size=3", "--num_cpu_devices=2"], ["batch_size=3", "2"]),
        (["--preset=huge"], ["preset", "enwik8_base"]),
        (["--dropout=1.5"], ["1.5"]),
        (["--corpus=enwik8"], ["data_dir"]),
        (["--hidden_dim=15"], ["hidden_dim=15"]),
        (["--segment_length=0"], ["segment_length"]),
        (["--head_dim=0"], ["head_dim=0"]),
        (["--corpus={folder}"], ["workdir", "folder of the text"]),
        (
            ["--eval_batch_size=3", "--num_cpu_devices=2"],
            ["eval_batch_size=3"],
        ),
    ],
)
def test_bad_input_stops_before_any_work(corpus, tmp_path, flags, messages):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1") * 500)
    (tmp_path / "short.txt").write_text("few words\n" * 3)
    flags = [flag.format(folder=tmp_path) for flag in flags]
    workdir = tmp_path / "run"
    done = run_script(
        "main.py", f"--corpus={corpus}", f"--workdir={workdir}", *TINY, *flags
    )
    assert done.returncode != 0
    last_words = done.stderr[-1000:] + done.stdout[-4000:]
    for message in messages:
        assert message in last_words
    assert "Traceback" not in done.stderr
    assert not (workdir / "checkpoints").exists()


def test_another_configuration_is_refused_and_the_run_kept(run):
    workdir, _, flags = run
    before = {p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()}
    done = run_script("main.py", *flags, "--learning_rate=0.02")
    assert done.returncode == 1
    assert "learning_rate was 0.01, now 0.02" in done.stderr
    assert before == {
        p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()
    }


def test_a_text_that_changed_is_not_scored(run, corpus):
    text = corpus.read_bytes()
    try:
        corpus.write_bytes(text[:-9] + b"different")
        done = run_script("evaluate.py", f"--workdir={run[0]}")
    finally:
        corpus.write_bytes(text)
    assert done.returncode == 1
    assert "is not what it was" in done.stderr


def test_the_text_may_be_moved_and_its_newlines_left_out(corpus, tmp_path):
    workdir = tmp_path / "run"
    succeed(
        "main.py",
        f"--corpus={corpus}",
        f"--workdir={workdir}",
        *TINY,
        "--tokenizer=characters",
        "--drop_newlines",
        "--max_steps=7",
    )
    moved = tmp_path / "moved.txt"
    moved.write_bytes(corpus.read_bytes())
    flags = (f"--workdir={workdir}", f"--corpus={moved}", "--split=valid")
    assert "num_tokens" in succeed("evaluate.py", *flags)
    # A new line is no token of this run: it begins with a space.
    written = succeed("generate.py", f"--workdir={workdir}", "--num_tokens=9")
    assert written.startswith(" ")
    assert len(written) == 1 + 9 + 1


def test_a_run_killed_at_its_very_end_is_finished_by_the_same_command(run):
    workdir, _, flags = run
    results = (workdir / "results.json").read_bytes()
    (workdir / "results.json").unlink()
    assert "The run is finished" not in succeed("main.py", *flags)
    assert (workdir / "results.json").read_bytes() == results


def test_two_replicas_in_bfloat16_run_to_the_end(corpus, tmp_path):
    flags = (f"--corpus={corpus}", f"--workdir={tmp_path}", *TINY)
    printed = succeed(
        "main.py",
        *flags,
        "--num_cpu_devices=2",
        "--precision=bfloat16",
        "--eval_batch_size=2",
        "--max_eval_tokens=500",
    )
    assert "2 x CPU" in printed
    assert "over 499 tokens" in printed


def test_a_loss_that_is_not_finite_stops_the_run(corpus, tmp_path):
    done = run_script(
        "main.py",
        f"--corpus={corpus}",
        f"--workdir={tmp_path}",
        *TINY,
        "--learning_rate=1e30",
        "--checkpoint_every=1",
    )
    assert done.returncode == 1
    assert "nan at step" in done.stderr
    # Steps that were fine were kept, and the message names the last of them.
    newest = (tmp_path / "checkpoints/checkpoint").read_text().split('"')[1]
    assert os.path.basename(newest) in done.stderr


@pytest.mark.parametrize("script", ["evaluate.py", "generate.py", "export.py"])
def test_a_workdir_without_a_run_is_named(script, tmp_path):
    done = run_script(script, f"--workdir={tmp_path}")
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
