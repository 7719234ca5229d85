"""The scripts in train/, as a person runs them: in processes of their own.

`here` runs them in this one, which saves the seconds that TensorFlow takes to
be imported.
"""

import contextlib
import io
import json
import math
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags as absl_flags

from benchmarks import growth
from benchmarks import report
from txl_keras.checkpoints import load_tf1
from txl_keras.data import ByteTokenizer
from txl_keras.data import Segments
from txl_keras.data import load_corpus
from txl_keras.data import vocabulary
from txl_keras.evaluation import attention_by_distance
from txl_keras.evaluation import attention_maps_at
from txl_keras.evaluation import spread_positions
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import XLNetPermutationLM
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.workdir import Workdir

GOLDEN = pathlib.Path(__file__).parents[1] / "testdata" / "golden"
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
    "--warmup_steps=0",
    "--max_sample_tokens=40",
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


@pytest.fixture
def here(monkeypatch):
    """A function that runs a script: what it printed, its last words.

    The last words are `None` where all went well. An error that the script
    would show with its traceback is raised.
    """

    def run(name, *flags):
        keras.utils.clear_session()  # or names of layers would count on
        known = set(absl_flags.FLAGS)
        printed = io.StringIO()
        monkeypatch.setattr(sys, "argv", [name, *map(str, flags)])
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_path(str(TRAIN / name), run_name="__main__")
        except SystemExit as stop:
            return printed.getvalue(), stop.code
        finally:
            # The next script defines flags of the same names.
            for flag in set(absl_flags.FLAGS) - known:
                delattr(absl_flags.FLAGS, flag)
            absl_flags.FLAGS.unparse_flags()
        raise AssertionError("absl ends a program by `sys.exit`")

    return run


def metrics_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def evaluation_of(workdir, split="test"):
    """The newest result of evaluate.py."""
    path = workdir / f"evaluation_{split}.json"
    return json.loads(path.read_text())[-1]


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
    assert f"test: {test['bits_per_token']:.4f} bits per byte" in printed
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
    measured = [line for line in metrics if "valid" in line]
    metrics = [line for line in metrics if "valid" not in line]
    # At multiples of 7, and where a score or a checkpoint is due.
    assert [line["step"] for line in metrics] == [
        7, 14, 20, 21, 25, 28, 35, 40, 42, 49, 50, 56, 60
    ]  # fmt: skip
    assert [line["step"] for line in measured] == [25, 50, 60]
    assert measured[-1]["valid"]["bits_per_token"] < 5
    assert metrics[0]["bits_per_token"] > 6
    rates = [line["learning_rate"] for line in metrics]
    assert rates == sorted(rates, reverse=True)
    # What was applied in the last step, 59 steps after the peak.
    assert rates[-1] == pytest.approx(
        0.005 * (1 - math.cos(math.pi / 60)), rel=1e-3
    )


def test_a_finished_run_says_so_and_changes_nothing(run):
    workdir, printed, flags = run
    before = (workdir / "results.json").read_bytes()
    again = succeed("main.py", *flags)
    assert "The run is finished." in again
    assert printed.splitlines()[-1] == again.splitlines()[-1]
    assert (workdir / "results.json").read_bytes() == before


@pytest.mark.large
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


def test_evaluate_agrees_with_training_and_takes_longer_memory(run, here):
    workdir, _, _ = run
    trained = json.loads((workdir / "results.json").read_text())["test"]
    printed, error = here(
        "evaluate.py", f"--workdir={workdir}", "--batch_size=3"
    )
    assert error is None
    same = evaluation_of(workdir)
    assert f"test: {same['bits_per_token']:.4f} bits per byte" in printed
    assert same["nll"] == pytest.approx(trained["nll"], abs=1e-5)
    assert same["num_tokens"] == trained["num_tokens"]
    assert same["memory_length"] == 12
    assert (same["checkpoint"], same["step"]) == ("best", 60)
    assert "corpus" not in same
    # Of bytes it is the number that was printed.
    assert same["bits_per_byte"] == pytest.approx(same["bits_per_token"])

    _, error = here(
        "evaluate.py",
        f"--workdir={workdir}",
        "--batch_size=1",
        "--memory_length=50",
        "--same_length",
        "--clamp_length=20",
    )
    assert error is None
    longer = evaluation_of(workdir)
    assert (longer["memory_length"], longer["clamp_length"]) == (50, 20)
    assert longer["same_length"] is True
    assert longer["num_tokens"] == trained["num_tokens"]
    assert 1e-4 < abs(longer["nll"] - trained["nll"]) < 0.5
    # Results of other settings stay.
    results = json.loads((workdir / "evaluation_test.json").read_text())
    assert results[-2:] == [same, longer]


def test_evaluate_scores_all_of_a_text_of_ones_own(run, here, tmp_path):
    text = tmp_path / "short.txt"
    text.write_bytes("Six times é is this.\n".encode() * 6)
    printed, error = here(
        "evaluate.py", f"--workdir={run[0]}", f"--corpus={text}", "--split=all"
    )
    assert error is None
    assert "short.txt (not the text of the run), all: " in printed
    assert evaluation_of(run[0], "all")["num_tokens"] == 6 * 22 - 1

    _, error = here("evaluate.py", f"--workdir={run[0]}", "--split=all")
    assert "`split` all is for text that" in error
    of_run = json.loads((run[0] / "config.json").read_text())["corpus"]
    _, error = here(
        "evaluate.py",
        f"--workdir={run[0]}",
        f"--corpus={of_run['corpus']}",
        "--text_key=other",
        "--split=all",
    )
    assert "`split` all is for text that" in error
    _, error = here(
        "evaluate.py", f"--workdir={run[0]}", "--corpus=enwik8", "--split=all"
    )
    assert "published corpora have splits" in error


def test_evaluate_writes_nats_and_a_curve_of_any_text(run, here, tmp_path):
    text = tmp_path / "other.txt"
    lines = [f"Sentence {i * 7} says: é {i}.\n" for i in range(200)]
    text.write_text("".join(lines), encoding="utf-8")
    flags = (
        f"--workdir={run[0]}",
        f"--corpus={text}",
        "--document_separator=\\n",
        "--split=valid",
        "--warmup=memory",
        "--position_curve",
    )
    printed, error = here("evaluate.py", *flags, "--token_nll")
    assert error is None
    assert "other.txt (not the text of the run), valid: " in printed
    assert "tokens/s" in printed
    result = evaluation_of(run[0], "valid")
    assert result["corpus"] == str(text)
    for name in (
        "evaluation_valid_tokens.npy",
        "evaluation_valid_positions.png",
    ):
        assert f"Written to {run[0] / name}" in printed
    assert (run[0] / name).read_bytes()[:4] == b"\x89PNG"

    valid = load_corpus(str(text)).read("valid")
    nll = np.load(run[0] / "evaluation_valid_tokens.npy")
    assert len(nll) == len(valid)
    assert np.flatnonzero(np.isnan(nll)).tolist() == [0]
    assert np.nanmean(nll, dtype=float) == pytest.approx(
        result["nll"], rel=1e-6
    )
    # Words that every line of training begins with are known.
    first = valid.index(b"\nSentence") + 1
    assert nll[first + 1 : first + 9].mean() < nll[1:].mean()

    curve = result["position_curve"]
    # All first letters of lines but that of the text.
    assert (curve[0]["start"], curve[0]["num_tokens"]) == (
        0, valid.count(b"\n") - 1
    )  # fmt: skip
    assert sum(bucket["num_tokens"] for bucket in curve) == len(nll) - 1

    # Elsewhere, and not at all.
    path = tmp_path / "nll.npy"
    _, error = here("evaluate.py", *flags, f"--token_nll_path={path}")
    assert error is None
    np.testing.assert_array_equal(np.load(path), nll)
    _, error = here("evaluate.py", *flags, f"--token_nll_path={tmp_path}")
    assert "`token_nll_path` must be a file" in error
    assert str(tmp_path) in error


def test_evaluate_slides_a_window_over_a_text(run, corpus, here):
    flags = (
        f"--workdir={run[0]}",
        "--segment_length=6",
        "--max_eval_tokens=40",
        "--batch_size=5",
    )
    printed, error = here(
        "evaluate.py", *flags, "--stride=1", "--memory_length=0"
    )
    assert error is None
    assert "over 39 tokens" in printed
    result = evaluation_of(run[0])
    assert result["stride"] == 1
    # Each token by the 6 before it, the first ones by as many as there are.
    ids = np.array(list(load_corpus(str(corpus)).read("test")[:40]))
    windows = np.stack([ids[max(0, t - 6) :][:7] for t in range(1, 40)])
    model, _ = Workdir(str(run[0])).load_model("best", memory_length=0)
    nll, _ = model.score(windows[:, :-1], windows[:, 1:])
    last = np.minimum(np.arange(39), 5)
    expected = nll.numpy()[np.arange(39), last].mean()
    assert result["nll"] == pytest.approx(expected, abs=1e-5)

    for wrong, message in (
        (["--stride=1"], "`memory_length` must be 0 .*=12"),
        (["--stride=7", "--memory_length=0"], "`stride` .* most 6.*stride=7"),
        (
            ["--stride=1", "--memory_length=0", "--same_length"],
            "`same_length` must be False",
        ),
    ):
        _, error = here("evaluate.py", *flags, *wrong)
        assert re.search(message, error)
    assert evaluation_of(run[0]) == result


def test_benchmark_holds_memory_against_windows_that_slide(here, tmp_path):
    picture, output = tmp_path / "slow.png", tmp_path / "slow.jsonl"
    flags = (
        *("--num_layers=1", "--num_heads=2", "--hidden_dim=16"),
        *("--intermediate_dim=24", "--segment_length=4", "--calls_per_turn=2"),
        *("--turns=1", "--windows=2", "--initializer_stddev=0.3"),
        f"--picture={picture}",
    )
    speed = ("benchmark.py", "--experiment=evaluation_speed", *flags)
    printed, error = here(*speed, "--attention_lengths=9", f"--output={output}")
    assert error is None
    assert "attention length      9: " in printed
    line = json.loads(output.read_text())
    assert line["memory_length"] == [9]
    (result,) = line["results"]
    assert (result["attention_length"], result["windows"]) == (9, 2)
    ours, sliding = result["seconds_per_token"].values()
    assert result["slowdown"] == pytest.approx(sliding / ours)
    assert result["published_slowdown"] is None
    # The scores are those of a window, and not of the segment alone.
    assert result["difference"] < 1e-4
    assert result["difference_without_memory"] > 0.01
    assert picture.read_bytes()[:4] == b"\x89PNG"

    _, error = here(*speed, "--attention_lengths=7")
    assert "`attention_lengths` must be at least 2 segments, 8" in error
    _, error = here("benchmark.py", "--experiment=evaluation", *flags)
    assert "with --experiment=growth or evaluation_speed" in error
    _, error = here(*speed, f"--picture={tmp_path}/slow.gif")
    assert "`picture` must end with .png or .svg or .pdf" in error
    _, error = here(*speed, f"--picture={tmp_path}/no/slow.png")
    assert "`picture` must be a writable file" in error


TINY_BENCHMARK = (
    *("--num_layers=1", "--num_heads=2", "--hidden_dim=16", "--turns=1"),
    *("--intermediate_dim=24", "--memory_length=6", "--segment_length=4"),
    *("--calls_per_turn=2", "--batch_size=3", "--vocabulary_size=7"),
)


@pytest.mark.large
@pytest.mark.parametrize("experiment", ["training", "evaluation"])
def test_benchmark_times_steps_in_turns(experiment, here, tmp_path):
    output = tmp_path / "steps.jsonl"
    _, error = here(
        "benchmark.py",
        f"--experiment={experiment}",
        f"--output={output}",
        *TINY_BENCHMARK,
    )
    assert error is None
    line = json.loads(output.read_text())
    assert line["vocabulary_size"] == 7
    others = {"training": [], "evaluation": ["training path"]}[experiment]
    assert list(line["seconds"]) == ["txl_keras", *others, "bare", "plain"]
    assert list(line["step_bytes"]) == list(line["seconds"])
    assert line["peak_bytes"] > max(line["step_bytes"].values()) >= 0
    for name, seconds in line["seconds"].items():
        assert line["tokens_per_s"][name] == pytest.approx(3 * 4 / seconds)
        assert line["utilization"][name] == pytest.approx(
            line["flops"] / seconds / line["peak_flops"]
        )
        assert line["compile_seconds"][name] > 0


def test_benchmark_times_attention_alone_and_batches(
    here, tmp_path, monkeypatch
):
    monkeypatch.setattr(report, "peak_flops", lambda dtype, strategy: 1e9)
    output = tmp_path / "parts.jsonl"
    flags = (f"--output={output}", *TINY_BENCHMARK)
    _, error = here(
        "benchmark.py", "--experiment=attention", *flags, "--contenders=plain"
    )
    assert error is None
    _, error = here(
        "benchmark.py",
        "--experiment=input_pipeline",
        *flags,
        "--corpus_tokens=200",
    )
    assert error is None
    attention, batches = map(json.loads, output.read_text().splitlines())
    work = [
        attention[name]["flops"] for name in ("forward", "forward_and_backward")
    ]
    # 4 (T + S) D N H and 6 T S N H, of three rows.
    assert work[0] == 3 * (4 * (4 + 10) * 16 * 16 + 6 * 4 * 10 * 16)
    assert work[1] == 3 * work[0]
    assert list(attention["forward"]["seconds"]) == ["plain"]
    assert batches["tokens_per_s"]["txl_keras"] > 0


def test_benchmark_measures_each_point_of_growth_alone(
    here, tmp_path, monkeypatch
):
    points = []

    def in_a_child(function, experiment, changes):
        points.append(changes)
        return {
            "contender": changes["contenders"][0], "seconds": 0.5,
            "compile_seconds": 1.0, "utilization": 0.25,
            "step_bytes": 2 * 2**20, "peak_bytes": 5 * 2**20,
            "peak_flops": 3e9,
        }  # fmt: skip

    monkeypatch.setattr(growth, "in_a_child", in_a_child)
    picture = tmp_path / "growth.png"
    growing = ("benchmark.py", "--experiment=growth", *TINY_BENCHMARK)
    printed, error = here(
        *growing,
        *("--segment_lengths=8", "--segment_lengths=4", "--memory_lengths=9"),
        *("--layer_counts=2", "--batch_sizes=5", f"--picture={picture}"),
    )
    assert error is None
    sizes = [("segment_length", 4), ("segment_length", 8)]
    sizes += [("memory_length", 9), ("num_layers", 2), ("batch_size", 5)]
    assert points == [
        {name: size, "contenders": [contender]}
        for name, size in sizes
        for contender in ("txl_keras", "plain")
    ]
    assert "0.250 of 3 GFLOP/s, memory 2.0 MiB per step" in printed
    assert "5 MiB in the process" in printed
    assert picture.read_bytes()[:4] == b"\x89PNG"
    results = json.loads(printed.splitlines()[-1])["results"]
    assert [(r["by"], r["size"]) for r in results[::2]] == sizes

    points.clear()
    _, error = here(*growing, "--same_length", f"--picture={picture}")
    assert error is None
    assert {tuple(point["contenders"]) for point in points} == {("txl_keras",)}

    _, error = here(*growing, "--contenders=training_path")
    assert "`contenders` of --experiment=growth must be among" in error


@pytest.mark.large
def test_a_point_of_growth_is_another_experiment(tmp_path):
    output = tmp_path / "growth.jsonl"
    succeed(
        "benchmark.py",
        *("--experiment=growth", "--contenders=plain", f"--output={output}"),
        *TINY_BENCHMARK,
        *("--segment_lengths=8", "--memory_lengths=9", "--layer_counts=2"),
        "--batch_sizes=5",
    )
    results = json.loads(output.read_text())["results"]
    assert [r["contender"] for r in results] == ["plain"] * 4
    assert all(r["peak_bytes"] > r["step_bytes"] >= 0 for r in results)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--experiment=training", "--backbone=lstm"], "`backbone` must be"),
        (
            ["--experiment=training", "--contenders=training_path"],
            "`contenders` of --experiment=training must be among",
        ),
        (
            ["--experiment=attention", "--peer=hugging_face"],
            "`peer` can only be given with --experiment=training or",
        ),
        (
            ["--experiment=training", "--peer=hugging_face"],
            "`peer_python` must be given with `peer`",
        ),
        (
            [
                "--experiment=attention",
                "--attention_type=vaswani",
                "--memory_length=0",
            ],
            "`attention_type` must be relative",
        ),
        (
            [
                "--experiment=training",
                "--contenders=bare",
                "--same_length",
            ],
            "`contenders` must include one that can run here",
        ),
        (
            ["--experiment=growth", "--contenders=plain", "--same_length"],
            "`contenders` must include one that supports this model",
        ),
        (
            ["--experiment=training", "--cutoffs=auto"],
            "`cutoffs` must be a list of integers",
        ),
        (
            ["--experiment=long_generation", "--contenders=plain"],
            "`contenders` can only be given with --experiment=training",
        ),
        (
            [
                "--experiment=training",
                "--peer=hugging_face",
                f"--peer_python={sys.executable}",
                "--normalize_first",
            ],
            "`peer` supports only relative attention",
        ),
    ],
)
def test_benchmark_says_what_it_cannot_time(flags, message, here):
    _, error = here("benchmark.py", *TINY_BENCHMARK, *flags)
    assert message in error


def test_generate_writes_after_a_prompt_and_repeats_by_seed(run, here):
    flags = (f"--workdir={run[0]}", "--prompt=Sentence é", "--max_tokens=60")
    sampled = ("generate.py", *flags, "--seed=1", "--top_p=0.9")
    first, error = here(*sampled)
    assert error is None
    assert first.startswith("Sentence é")
    assert len(first.encode()) > 60
    assert here(*sampled) == (first, None)
    greedy, error = here("generate.py", *flags, "--temperature=0")
    assert error is None
    assert greedy != first
    # What Python makes of a byte that is not UTF-8.
    printed, error = here("generate.py", flags[0], "--prompt=a\udcff")
    assert "`prompt` must be" in error and printed == ""
    printed, error = here("generate.py", *flags, "--seed=2147483647")
    assert "seed=2147483647" in error and printed == ""


def test_an_option_without_effect_on_an_export_is_refused(here, tmp_path):
    flags = (f"--workdir={tmp_path}", "--raw_text", "--num_slots=3")
    _, error = here("export.py", *flags)
    assert "`num_slots` must be left out with --raw_text" in error


@pytest.mark.large
@pytest.mark.parametrize(
    "fixture", ["run", pytest.param("words_run", marks=pytest.mark.large)]
)
def test_the_savedmodel_loads_where_there_is_only_tensorflow(
    fixture, request, here, tmp_path
):
    workdir = request.getfixturevalue(fixture)[0]
    _, error = here(
        "export.py",
        f"--workdir={workdir}",
        f"--output={tmp_path / 'served'}",
        "--memory_length=9",
    )
    assert error is None
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
    model, _ = Workdir(str(workdir)).load_model(memory_length=9)
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
        (["--batch_size=3", "--num_cpu_devices=2"], ["batch_size=3", "2"]),
        (["--preset=huge"], ["preset", "enwik8_base"]),
        (["--attention_type=absolute"], ["attention_type", "vaswani"]),
        (
            ["--eval_batch_size=3", "--num_cpu_devices=2"],
            ["eval_batch_size=3"],
        ),
    ],
)
def test_bad_input_stops_before_any_work(corpus, tmp_path, flags, messages):
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


def test_a_text_that_is_not_there_stops_before_any_work(here, tmp_path):
    workdir = tmp_path / "run"
    flags = ("--corpus=no/such/path", f"--workdir={workdir}", *TINY)
    _, error = here("main.py", *flags)
    assert "corpus" in error
    assert "no/such/path" in error
    assert not (workdir / "checkpoints").exists()


def test_another_configuration_is_refused_and_the_run_kept(run, here):
    workdir, _, flags = run
    before = {p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()}
    _, error = here("main.py", *flags, "--learning_rate=0.02")
    assert "learning_rate was 0.01, now 0.02" in error
    assert before == {
        p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()
    }


def test_a_text_that_changed_is_not_scored(run, corpus, here):
    text = corpus.read_bytes()
    try:
        corpus.write_bytes(text[:-9] + b"different")
        _, error = here("evaluate.py", f"--workdir={run[0]}")
    finally:
        corpus.write_bytes(text)
    assert "is not what it was" in error


@pytest.mark.large
def test_the_text_may_be_moved_and_its_newlines_left_out(
    corpus, here, tmp_path
):
    workdir = tmp_path / "run"
    _, error = here(
        "main.py",
        f"--corpus={corpus}",
        f"--workdir={workdir}",
        *TINY,
        "--tokenizer=characters",
        "--drop_newlines",
        "--max_steps=7",
    )
    assert error is None
    moved = tmp_path / "moved.txt"
    moved.write_bytes(corpus.read_bytes())
    flags = (f"--workdir={workdir}", f"--corpus={moved}", "--split=valid")
    printed, error = here("evaluate.py", *flags, "--max_eval_tokens=100")
    assert error is None
    assert "bpc over 99 tokens" in printed
    # A new line is no token of this run: it begins with a space.
    flags = (f"--workdir={workdir}", "--max_tokens=9")
    written, error = here("generate.py", *flags)
    assert error is None
    assert written.startswith(" ")
    assert len(written) == 1 + 9 + 1


@pytest.mark.large
def test_a_run_killed_at_its_very_end_is_finished_by_the_same_command(run):
    workdir, _, flags = run
    results = (workdir / "results.json").read_bytes()
    (workdir / "results.json").unlink()
    assert "The run is finished" not in succeed("main.py", *flags)
    assert (workdir / "results.json").read_bytes() == results


@pytest.mark.large
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


def test_a_loss_that_is_not_finite_stops_the_run(corpus, here, tmp_path):
    _, error = here(
        "main.py",
        f"--corpus={corpus}",
        f"--workdir={tmp_path}",
        *TINY,
        "--learning_rate=1e30",
        "--checkpoint_every=1",
    )
    assert "the loss is nan" in error
    # Steps that were fine were kept, and the message names the last of them.
    newest = max(saved_steps(str(tmp_path / "checkpoints")))
    assert f"checkpoints/ckpt-{newest}." in error


@pytest.mark.parametrize("script", ["evaluate.py", "generate.py", "export.py"])
def test_a_workdir_without_a_run_is_named(script, here, tmp_path):
    _, error = here(script, f"--workdir={tmp_path}")
    assert str(tmp_path) in error


# === Words ===


@pytest.fixture(scope="module")
def word_corpus(tmp_path_factory):
    """Lines of a few words; every tenth has one that comes only once."""
    path = tmp_path_factory.mktemp("words") / "words.txt"
    lines = []
    for i in range(700):
        end = f"once{i}" if i % 10 == 0 else "and so on"
        lines.append(f"the naïve {i * i % 23} is Not {i % 7} , {end} .\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def words_run(word_corpus, tmp_path_factory):
    """A finished run of words with an adaptive softmax, as `run`."""
    workdir = tmp_path_factory.mktemp("word_runs") / "whole"
    flags = (
        f"--corpus={word_corpus}",
        f"--workdir={workdir}",
        *TINY,
        "--tokenizer=words",
        "--min_count=2",
        "--cutoffs=6,20",
        "--div_val=2",
        "--max_to_keep=3",
    )
    return workdir, succeed("main.py", *flags), flags


@pytest.mark.large
def test_words_are_counted_and_scored_in_perplexity(words_run):
    workdir, printed, _ = words_run
    tokenizer = Workdir(str(workdir)).load_tokenizer()
    # Words that came once are unknown; the line end and <unk> are words too.
    assert tokenizer.vocabulary_size == 24
    assert not any("once" in word for word in tokenizer.vocabulary.symbols)
    results = json.loads((workdir / "results.json").read_text())
    ppl = results["test"]["perplexity"]
    assert 1 < ppl < 15
    assert f"test: {ppl:.2f} ppl" in printed
    assert "bpc" not in printed
    model, step = Workdir(str(workdir)).load_model()
    assert step == 60
    assert model.backbone.token_embedding.cutoffs == (6, 20)
    assert model.backbone.token_embedding.dims == (16, 8, 4)
    sample = (workdir / "sample.txt").read_text("utf-8")
    assert set(sample.split()) <= {*tokenizer.vocabulary.symbols}


@pytest.mark.large
def test_a_run_of_words_goes_on_as_if_it_had_never_stopped(
    words_run, here, tmp_path
):
    whole, _, flags = words_run
    workdir = tmp_path / "cut"
    shutil.copytree(whole, workdir)
    (workdir / "results.json").unlink()
    # Killed after step 40, as far as the run can see.
    newest = workdir / "checkpoints" / "ckpt-60.data-00000-of-00001"
    newest.write_bytes(newest.read_bytes()[:100])
    printed, error = here("main.py", *flags, f"--workdir={workdir}")
    assert error is None
    assert "step 40 of 60" in printed
    assert metrics_of(workdir) == metrics_of(whole)
    for name in ("results.json", "sample.txt"):
        assert (workdir / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.large
def test_a_run_of_words_is_scored_and_written_on(words_run, here):
    workdir = words_run[0]
    trained = json.loads((workdir / "results.json").read_text())["test"]
    printed, error = here(
        "evaluate.py", f"--workdir={workdir}", "--batch_size=3"
    )
    assert error is None
    scores = evaluation_of(workdir)
    assert scores["nll"] == pytest.approx(trained["nll"], abs=1e-5)
    assert f"test: {scores['perplexity']:.2f} ppl" in printed

    flags = (f"--workdir={workdir}", "--max_tokens=30")
    printed, error = here("generate.py", *flags, "--prompt=the unheard")
    assert error is None
    assert printed.startswith("the unheard")
    words = [*Workdir(str(workdir)).load_tokenizer().vocabulary.symbols]
    written = printed.removeprefix("the unheard").replace("\n", " <eos> ")
    # The last newline is that of `print`.
    assert len(written.split()) == 31
    assert {*written.split()} <= {*words}


@pytest.mark.large
def test_a_vocabulary_file_is_the_vocabulary(word_corpus, here, tmp_path):
    words = ["<eos>", "the", ".", "is", ",", "and", "so", "on", "UNK", "never"]
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("\n".join(words) + "\n", encoding="utf-8")
    flags = (
        f"--corpus={word_corpus}",
        f"--workdir={tmp_path / 'run'}",
        *TINY,
        "--tokenizer=words",
        f"--vocabulary={vocabulary}",
        "--optimizer=lamb",
        "--learning_rate=0.1",
        "--max_steps=8",
    )
    # The text has other words, and the file no <unk>.
    printed, error = here("main.py", *flags)
    assert "train split of" in error
    assert "'naïve', about 1 tokens after its start" in error
    assert not (tmp_path / "run" / "checkpoints").exists()

    printed, error = here("main.py", *flags, "--unknown=UNK")
    assert error is None
    workdir = Workdir(str(tmp_path / "run"))
    tokenizer = workdir.load_tokenizer()
    assert list(tokenizer.vocabulary.symbols) == words
    ids = tokenizer.encode("the naïve 3 is\n").tolist()
    assert [words[i] for i in ids] == ["the", "UNK", "UNK", "is", "<eos>"]
    # Lamb learned: a guess among ten words is 2.3 nats.
    assert metrics_of(tmp_path / "run")[-1]["valid"]["nll"] < 2.1
    assert workdir.read_config()["flags"]["optimizer"] == "lamb"


@pytest.mark.large
@pytest.mark.parametrize(
    "order",
    [
        ["--order=roll"],
        ["--order=shuffle", "--reset_documents"],
        ["--varlen"],  # six programs
    ],
)
def test_any_order_of_the_text_is_learned(order, corpus, here, tmp_path):
    flags = (
        f"--corpus={corpus}",
        f"--workdir={tmp_path}",
        *TINY,
        "--document_separator=\\n",
        "--segment_length=16",
        "--max_eval_tokens=500",
        *order,
    )
    # Sentences of the corpus have 18 to 27 bytes.
    printed, error = here("main.py", *flags, "--max_sample_tokens=0")
    assert error is None
    losses = [line["loss"] for line in metrics_of(tmp_path) if "loss" in line]
    assert losses[-1] < losses[0] - 1
    assert here("main.py", *flags, "--max_steps=61")[1] is not None


@pytest.mark.large
def test_the_score_of_a_text_is_one_whatever_the_batch_size(run, here):
    scores = {}
    for batch_size, warmup in (
        (1, "exact"), (3, "exact"), (16, "exact"), (64, "none")
    ):  # fmt: skip
        _, error = here(
            "evaluate.py",
            f"--workdir={run[0]}",
            f"--batch_size={batch_size}",
            f"--warmup={warmup}",
            "--segment_length=5",
        )
        assert error is None
        result = evaluation_of(run[0])
        scores[batch_size, warmup] = result["bits_per_token"]
    assert scores[3, "exact"] == pytest.approx(scores[1, "exact"], abs=1e-6)
    assert scores[16, "exact"] == pytest.approx(scores[1, "exact"], abs=1e-6)
    assert abs(scores[64, "none"] - scores[1, "exact"]) > 1e-4


@pytest.mark.large
def test_prepared_text_is_described_and_found_by_training(
    word_corpus, here, tmp_path
):
    options = (
        f"--corpus={word_corpus}",
        f"--data_dir={tmp_path}",
        "--document_separator=\\n",
        "--tokenizer=words",
        "--min_count=2",
    )
    printed, error = here(
        "prepare_data.py", *options, f"--output={tmp_path / 'out'}"
    )
    assert error is None
    statistics = json.loads((tmp_path / "out/statistics.json").read_text())
    train = statistics["splits"]["train"]
    assert statistics["vocabulary_size"] == 24
    assert train["num_documents"] == 631
    # Every tenth line has a word that came once, of nine or ten.
    assert train["unknown_rate"] == pytest.approx(0.01, rel=0.2)
    assert train["document_length"]["max"] == 12
    assert f"{train['num_tokens']:,}" in printed
    assert (tmp_path / "out/statistics.png").read_bytes()[:4] == b"\x89PNG"

    written = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("tokens.bin")}
    assert len(written) == 3
    flags = (f"--workdir={tmp_path / 'run'}", *TINY, "--max_steps=3")
    _, error = here("main.py", *options, *flags)
    assert error is None
    assert written == {
        p: p.stat().st_mtime_ns for p in tmp_path.rglob("tokens.bin")
    }


@pytest.mark.large
def test_cutoffs_are_chosen_for_large_vocabularies(
    word_corpus, here, tmp_path, monkeypatch
):
    monkeypatch.setattr(vocabulary, "LARGE_VOCABULARY", 20)
    flags = (f"--corpus={word_corpus}", f"--workdir={tmp_path}", *TINY)
    flags += ("--tokenizer=words", "--cutoffs=auto", "--max_steps=3")
    printed, error = here("main.py", *flags, "--max_sample_tokens=0")
    assert error is None
    config = Workdir(str(tmp_path)).read_config()
    cutoffs = config["model"]["backbone"]["config"]["cutoffs"]
    assert len(cutoffs) == 3 and cutoffs == sorted(set(cutoffs))
    assert f"(cutoffs {cutoffs})" in printed


@pytest.mark.large
def test_subwords_are_trained_and_scored_by_the_byte(corpus, here, tmp_path):
    pytest.importorskip("tensorflow_text")
    pytest.importorskip("sentencepiece")
    flags = (f"--corpus={corpus}", f"--workdir={tmp_path}", *TINY)
    printed, error = here(
        "main.py",
        *flags,
        "--tokenizer=sentencepiece",
        "--vocabulary_size=290",
        "--max_steps=10",
    )
    assert error is None
    test = json.loads((tmp_path / "results.json").read_text())["test"]
    text = load_corpus(corpus).read("test")
    tokenizer = Workdir(str(tmp_path)).load_tokenizer()
    first = tokenizer.decode_bytes(tokenizer.encode(text)[:1])
    num_bytes = len(text.removeprefix(first))  # the first is not scored
    bits = test["nll"] * test["num_tokens"] / np.log(2) / num_bytes
    assert test["bits_per_byte"] == pytest.approx(bits)
    assert f"ppl over {test['num_tokens']:,} tokens, {bits:.4f} bits" in printed
    written, error = here("generate.py", f"--workdir={tmp_path}", "--prompt=é")
    assert error is None
    assert written.startswith("é")
    flags = (f"--workdir={tmp_path}", "--raw_text", "--max_batch_size=3")
    printed, error = here("export.py", *flags)
    assert error is None
    assert "`import tensorflow_text` before it is loaded" in printed
    served = tmp_path / "export_text" / "10"
    settings = json.loads((served / "assets" / "settings.json").read_text())
    assert settings["max_batch_size"] == 3
    loaded = tf.saved_model.load(served)
    assert loaded.score_text(["é"])["nll"].shape == (1,)


@pytest.mark.large
def test_absolute_positions_run_to_the_end(corpus, here, tmp_path):
    printed, error = here(
        "main.py",
        f"--corpus={corpus}",
        f"--workdir={tmp_path}",
        *TINY,
        "--attention_type=vaswani",
        "--memory_length=0",
        "--max_steps=8",
        "--max_eval_tokens=100",
    )
    assert error is None
    sample = (tmp_path / "sample.txt").read_text("utf-8")
    assert len(sample) >= 20
    assert sample in printed
    assert (tmp_path / "export/8/saved_model.pb").exists()


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (["--corpus={folder}/empty.txt"], ["empty.txt", "empty"]),
        (["--corpus={folder}/latin.txt"], ["latin.txt", "UTF-8", "offset 2"]),
        (["--corpus={folder}/short.txt"], ["tokens", "--batch_size"]),
        (["--corpus={folder}"], ["workdir", "folder of the text"]),
        (["--corpus=tfds:lm2b"], ["lm1b", "'lm2b'"]),
        (["--corpus=ptb", "--manual_dir={folder}/no"], ["manual_dir", "/no'"]),
        (["--varlen", "--order=roll"], ["varlen", "roll"]),
        (["--document_separator=<end>"], ["empty", "'<end>'"]),
        (["--tokenizer=sentencepiece"], ["vocabulary_size"]),
        (["--dropout=1.5"], ["1.5"]),
        (["--hidden_dim=15"], ["hidden_dim=15"]),
        (["--head_dim=0"], ["head_dim=0"]),
        (["--min_count=2"], ["'bytes'", "min_count=2"]),
        (
            ["--tokenizer=characters", "--unknown=?"],
            ["'characters'", "unknown='?'"],
        ),
        (["--vocabulary={folder}/words.txt"], ["'bytes'", "vocabulary"]),
        (
            ["--tokenizer=words", "--drop_newlines"],
            ["'words'", "drop_newlines=True"],
        ),
        (
            [
                "--tokenizer=words",
                "--vocabulary={folder}/words.txt",
                "--min_count=2",
            ],
            ["min_count"],
        ),
        (["--tokenizer=words", "--min_count=0"], ["min_count=0"]),
        (["--tokenizer=words", "--vocabulary=no/such"], ["no/such"]),
        (
            ["--tokenizer=words", "--vocabulary={folder}/empty.txt"],
            ["empty.txt"],
        ),
        (["--cutoffs=20,10"], ["cutoffs=(20, 10)"]),
        (["--cutoffs=20,256"], ["256", "cutoffs=(20, 256)"]),
        (["--cutoffs=20", "--div_val=0"], ["div_val=0"]),
        (["--attention_type=vaswani"], ["`memory_length`", "12"]),
        (["--attention_type=shaw"], ["max_positions"]),
    ],
)
def test_bad_settings_stop_before_any_work(
    corpus, here, tmp_path, flags, messages
):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1") * 500)
    (tmp_path / "short.txt").write_text("few words\n" * 3)
    (tmp_path / "words.txt").write_text("<eos>\n<unk>\nSentence\n")
    flags = [flag.format(folder=tmp_path) for flag in flags]
    workdir = tmp_path / "run"
    _, error = here(
        "main.py", f"--corpus={corpus}", f"--workdir={workdir}", *TINY, *flags
    )
    for message in messages:
        assert message in error
    assert not workdir.exists()


# === average.py ===


@pytest.mark.large
def test_a_run_begins_with_the_weights_of_another(
    words_run, word_corpus, here, tmp_path
):
    origin = tmp_path / "origin"
    shutil.copytree(words_run[0], origin)
    flags = (
        f"--corpus={word_corpus}",
        f"--initialize_from={origin}",
        f"--workdir={tmp_path / 'tuned'}",
        *(f for f in TINY if not re.search("_dim|num|learning_rate", f)),
        "--max_steps=25",
        "--memory_length=20",
    )
    _, error = here("main.py", *flags, "--tokenizer=words")
    assert "`tokenizer` cannot be given with `initialize_from`" in error
    _, error = here("main.py", *flags, "--num_layers=2")
    assert "is of another model: weights/block_1" in error
    printed, error = here("main.py", *flags)
    assert error is None
    assert f"Starts from the best weights of {origin}, step" in printed
    # Half of what the other run began with, and so it stays.
    assert "at a learning rate of 0.005." in printed
    before, after = (
        json.loads((path / "results.json").read_text())["valid"]["nll"]
        for path in (origin, tmp_path / "tuned")
    )
    assert after < before + 0.02
    model, _ = Workdir(str(tmp_path / "tuned")).load_model()
    assert model.backbone.memory_length == 20
    assert model.backbone.token_embedding.cutoffs == (6, 20)
    # Once it has begun, the other run is needed no more.
    shutil.rmtree(origin)
    (tmp_path / "tuned" / "results.json").unlink()
    printed, error = here("main.py", *flags)
    assert error is None
    assert "step 25 of 25" in printed


@pytest.mark.large
def test_the_average_of_a_run_is_a_run(words_run, here, tmp_path):
    workdir, output = words_run[0], tmp_path / "average"
    flags = ("average.py", f"--workdir={workdir}", f"--output={output}")
    printed, error = here(*flags, "--num_checkpoints=2")
    assert error is None
    assert "[40, 60]" in printed

    readers = [
        tf.train.load_checkpoint(str(workdir / f"checkpoints/ckpt-{step}"))
        for step in (40, 60)
    ]
    written = tf.train.load_checkpoint(str(output / "checkpoints/ckpt-60"))
    names = [
        name
        for name in written.get_variable_to_shape_map()
        if name.startswith("weights/")
    ]
    model, step = Workdir(str(output)).load_model()
    assert len(names) == len(model.weights) > 20
    assert step == 60
    for name in names:
        older, newer = (reader.get_tensor(name) for reader in readers)
        np.testing.assert_allclose(
            written.get_tensor(name), (older + newer) / 2, rtol=1e-6, atol=1e-7
        )
        assert np.abs(older - newer).max() > 1e-4

    config = json.loads((output / "config.json").read_text())
    assert config["averaged_steps"] == [40, 60]
    _, error = here("evaluate.py", f"--workdir={output}", "--batch_size=3")
    assert error is None
    trained = json.loads((workdir / "results.json").read_text())["test"]
    averaged = evaluation_of(output)
    assert averaged["num_tokens"] == trained["num_tokens"]
    assert 1e-4 < abs(averaged["nll"] - trained["nll"]) < 0.5

    before = (output / "config.json").read_bytes()
    _, error = here(*flags)
    assert "must be new" in error
    assert str(output) in error
    assert (output / "config.json").read_bytes() == before


@pytest.mark.large
def test_an_average_of_more_checkpoints_than_there_are_is_refused(
    words_run, here, tmp_path
):
    output = tmp_path / "average"
    flags = (f"--workdir={words_run[0]}", f"--output={output}")
    _, error = here("average.py", *flags, "--num_checkpoints=4")
    assert "at most 3" in error
    assert "--max_to_keep" in error
    assert not output.exists()


# === convert.py ===

TF1 = GOLDEN / "wt103_large_like"
WORDS = ["<eos>", "<unk>", *(f"word{i}" for i in range(58))]


@pytest.fixture
def published(tmp_path):
    """Flags of a published TensorFlow 1 model, and a text of its words."""
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    numbers = np.random.default_rng(0).integers(0, 58, (240, 9))
    lines = [" ".join(f"word{i}" for i in line) + "\n" for line in numbers]
    (tmp_path / "text.txt").write_text("".join(lines) + "new words\n")
    return (
        "--input_format=tf1",
        f"--input={TF1 / 'model.ckpt'}",
        f"--config={TF1 / 'config.json'}",
        f"--vocabulary={tmp_path / 'words.txt'}",
    )


@pytest.mark.large
def test_a_published_model_becomes_a_run_and_a_hugging_face_folder(
    published, here, tmp_path
):
    run, folder, back = (tmp_path / name for name in ("run", "hf", "back"))
    printed, error = here(
        "convert.py", *published, f"--output={run}", "--segment_length=7"
    )
    assert error is None
    original = load_tf1(TF1 / "model.ckpt", TF1 / "config.json")
    assert f"{original.count_params():,} weights written to {run}" in printed

    # Scored as the original is, segment for segment.
    text = tmp_path / "text.txt"
    flags = (f"--workdir={run}", f"--corpus={text}", "--batch_size=1")
    _, error = here("evaluate.py", *flags)
    assert error is None
    scores = evaluation_of(run)
    words = load_corpus(str(text)).read("test").decode()
    words = words.replace("\n", " <eos> ").replace("new words", "<unk> <unk>")
    ids = np.array([WORDS.index(word) for word in words.split()])
    assert scores["num_tokens"] == len(ids) - 1
    assert scores["segment_length"] == 7
    nll, memory = 0.0, None
    segments = Segments(ids, 1, 7, drop_remainder=False)
    for i in range(len(segments)):
        batch = segments.batch(i)
        part, memory = original.score(batch["inputs"], batch["targets"], memory)
        nll += float(tf.reduce_sum(part * batch["weights"]))
    assert scores["nll"] == pytest.approx(nll / (len(ids) - 1), abs=1e-5)

    flags = (f"--workdir={run}", "--prompt=word3 word4", "--max_tokens=12")
    printed, error = here("generate.py", *flags)
    assert error is None
    assert printed.startswith("word3 word4")
    assert len(printed.replace("\n", " <eos> ").split()) == 2 + 12 + 1

    _, error = here(
        "convert.py",
        "--input_format=workdir",
        f"--input={run}",
        "--output_format=hugging_face",
        "--same_length=pytorch",
        f"--output={folder}",
    )
    assert error is None
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
    }
    _, error = here(
        "convert.py",
        "--input_format=hugging_face",
        f"--input={folder}",
        f"--output={back}",
    )
    assert error is None
    returned, _ = Workdir(str(back)).load_model()
    assert returned.backbone.same_length == "pytorch"
    for a, b in zip(original.weights, returned.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    expected = load_tf1(
        TF1 / "model.ckpt", TF1 / "config.json", same_length="pytorch"
    )
    np.testing.assert_allclose(
        returned.log_probs(ids[None, :20])[0],
        expected.log_probs(ids[None, :20])[0],
        atol=1e-5,
    )


def test_a_published_model_of_bytes_reads_text(here, tmp_path):
    golden, output = GOLDEN / "enwik8_like", tmp_path / "run"
    size = json.loads((golden / "config.json").read_text())["n_token"]
    numbers = [*range(98, 98 + size - 2), 195, 169]  # b, c, ..., and é
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("".join(f"{number}\n" for number in numbers))
    _, error = here(
        "convert.py",
        "--input_format=tf1",
        f"--input={golden / 'model.ckpt'}",
        f"--config={golden / 'config.json'}",
        f"--vocabulary={vocabulary}",
        "--symbols=bytes",
        f"--output={output}",
    )
    assert error is None
    tokenizer = Workdir(str(output)).load_tokenizer()
    ids = tokenizer.encode("cé\nb").tolist()
    assert ids == [1, size - 2, size - 1, 0]
    assert tokenizer.decode(ids) == "céb"


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (["--vocabulary={folder}/short.txt"], ["60 symbols", "59 symbols"]),
        (["--config="], ["`config` must be given"]),
        (["--config=no.json"], ["no.json"]),
        (
            ["--config={folder}/deeper.json"],
            ["missing: transformer/layer_2/rel_attn/qkv/kernel", "layer_2/ff"],
        ),
        (["--input=no/model.ckpt"], ["no/model.ckpt"]),
        (["--input={folder}/cut.ckpt"], ["cut.ckpt"]),
        (["--input_format=hugging_face"], ["`config` must be left out"]),
        (["--line_end=none"], ["`line_end`", "'none'"]),
        (["--output={folder}/full"], ["`output`", "full"]),
        (["--output="], ["`output`"]),
        (["--output={folder}/text.txt/new"], ["`output`", "text.txt is not"]),
        (["--input="], ["`input`"]),
        (["--unknown=none"], ["`unknown`", "none"]),
        (["--vocabulary=", "--lower_case"], ["'lower_case'", "of words"]),
        (["--symbols=bytes", "--line_end=x"], ["'line_end'", "of words"]),
        (
            ["--symbols=bytes", "--vocabulary={folder}/digits.txt"],
            ["symbols=bytes", "from 0 to 255", "'٣'"],
        ),
        (
            [
                "--output_format=hugging_face",
                "--vocabulary=",
                "--segment_length=7",
            ],
            ["'segment_length'", "output_format=workdir"],
        ),
        (["--output_format=hugging_face"], ["`vocabulary`", "words.txt"]),
        (
            ["--output_format=hugging_face", "--vocabulary="],
            ["same_length=True"],
        ),
    ],
)
def test_what_cannot_be_converted_leaves_nothing(
    published, here, tmp_path, flags, messages
):
    (tmp_path / "short.txt").write_text("\n".join(WORDS[:-1]))
    (tmp_path / "digits.txt").write_text("٣\n7\n")
    config = json.loads((TF1 / "config.json").read_text())
    (tmp_path / "deeper.json").write_text(json.dumps({**config, "n_layer": 3}))
    for part in ("index", "data-00000-of-00001"):
        content = (TF1 / f"model.ckpt.{part}").read_bytes()
        size = len(content) if part == "index" else len(content) // 2
        (tmp_path / f"cut.ckpt.{part}").write_bytes(content[:size])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("dear to me")
    before = sorted(tmp_path.rglob("*"))
    flags = [flag.format(folder=tmp_path) for flag in flags]
    _, error = here(
        "convert.py", *published, f"--output={tmp_path / 'new'}", *flags
    )
    for message in messages:
        assert message in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.large
def test_a_masked_cold_start_is_not_for_hugging_face(words_run, here, tmp_path):
    flags = (
        "convert.py",
        "--input_format=workdir",
        f"--input={words_run[0]}",
        "--output_format=hugging_face",
        f"--output={tmp_path / 'hf'}",
    )
    _, error = here(*flags)
    assert "cold_start='masked'" in error
    assert list(tmp_path.iterdir()) == []
    _, error = here(*flags, "--cold_start=zeros")
    assert error is None
    assert (tmp_path / "hf" / "model.safetensors").exists()


# === Relative effective context length ===


@pytest.fixture
def group(tmp_path):
    """Two runs of one tokenizer, never trained, and one of another."""
    paths = []
    for name, memory_length, tokenizer in (
        ("memory", 7, ByteTokenizer()),
        ("none", 0, ByteTokenizer()),
        ("other", 0, ByteTokenizer(drop_newlines=True)),
    ):
        model = TransformerXLCausalLM.from_preset(
            "quickstart", num_layers=1, hidden_dim=8, intermediate_dim=4,
            num_heads=2, head_dim=3, memory_length=memory_length,
        )  # fmt: skip
        paths.append(tmp_path / name)
        config = {"flags": {"segment_length": 5}}
        Workdir(str(paths[-1])).create(model, 3, config, tokenizer)
    return paths


def test_context_lengths_of_a_group_are_measured(group, corpus, here, tmp_path):
    memory, none, _ = group
    output = tmp_path / "new" / "folder" / "recl.json"
    printed, error = here(
        "recl.py",
        f"--workdirs={memory},{none}",
        "--labels=far,near",
        f"--corpus={corpus}",
        "--context_lengths=4,8,12",
        "--top_r=0.25,1",
        "--num_positions=11",
        "--segment_lengths=6,4",
        f"--output={output}",
    )
    assert error is None
    written = json.loads(output.read_text())
    assert written["context_lengths"] == [4, 8, 12]
    assert written["corpus"] == str(corpus)
    first, second = written["models"]
    assert (first["segment_length"], first["memory_length"]) == (6, 7)
    assert (second["segment_length"], second["memory_length"]) == (4, 0)
    assert (first["workdir"], first["step"]) == (str(memory), 3)
    # Without memory the last segment is all it sees.
    assert second["nll"] == pytest.approx([second["nll"][0]] * 3, abs=1e-6)
    assert np.abs(np.diff(first["nll"])).min() > 1e-6
    for model in written["models"]:
        assert [r["top_r"] for r in model["recl"]] == [0.25, 1]
        assert all(len(r["gains"]) == 2 for r in model["recl"])
    assert output.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    # Weights are random: no context helps.
    assert [line.split() for line in printed.splitlines()[1:4]] == [
        ["model", "r", "=", "0.25", "r", "=", "1"],
        ["far", "<=", "4", "<=", "4"],
        ["near", "<=", "4", "<=", "4"],
    ]
    # Drawn once more, by the same names and by others.
    numbers = f"--numbers={output}"
    for picture, labels, texts in (
        ("recl", [], ["far", "near", "r = 0.25"]),
        ("context_losses", ["--labels=a,b"], ["a", "b", "bits per byte", "12"]),
    ):
        output = tmp_path / f"{picture}.svg"
        _, error = here(
            "plot.py",
            f"--picture={picture}",
            numbers,
            *labels,
            f"--output={output}",
        )
        assert error is None
        for text in texts:
            assert f"<!-- {text} -->" in output.read_text("utf-8")


def test_what_is_no_group_is_refused_before_any_work(
    group, corpus, here, tmp_path
):
    memory, none, other = group
    two = f"--workdirs={memory},{none}"
    output = tmp_path / "recl.json"
    text = f"--corpus={corpus}"
    few = "--num_positions=9"
    for flags, messages in (
        ([f"--workdirs={memory}", text], ["`workdirs` must be two"]),
        ([f"--workdirs={memory},{memory}/", text], ["must be different runs"]),
        ([f"--workdirs={memory},{other}", text], ["one tokenizer", str(other)]),
        ([two], ["`corpus` must be given"]),
        ([two, text, "--top_r=2"], ["`top_r`", "2.0"]),
        ([two, text, "--top_r=x"], ["`top_r` must be numbers", "=x"]),
        ([two, text, "--context_lengths=1,2,4"], ["`context_lengths`"]),
        ([two, text, "--num_positions=99999"], ["`num_positions` must be"]),
        ([two, text, few, "--memory_lengths=3"], ["`memory_lengths`", "2 num"]),
        ([two, text, few, "--memory_lengths=3,-1"], ["memory_lengths=-1"]),
        ([two, text, f"--output={corpus}/a.json"], ["`output`", "txt/a.json"]),
        ([two, text, "--output=a.txt"], ["`output` must end with .json"]),
    ):
        _, error = here("recl.py", f"--output={output}", *flags)
        for message in messages:
            assert message in error
    assert not output.exists()


# === Pictures ===


def picture_numbers(path):
    assert path.read_bytes()[:4] == b"\x89PNG"
    return json.loads(path.with_suffix(".json").read_text())


@pytest.mark.large
def test_learning_curves_are_those_of_the_metrics(
    run, words_run, here, tmp_path
):
    output = tmp_path / "curves.png"
    flags = ("--picture=learning_curves", f"--output={output}")
    _, error = here("plot.py", *flags, f"--workdirs={run[0]}", "--labels=one")
    assert error is None
    numbers = picture_numbers(output)
    assert numbers["unit"] == "byte"
    (model,) = numbers["models"]
    assert (model["label"], model["tokens_per_step"]) == ("one", 4 * 8)
    metrics = metrics_of(run[0])
    for name, losses in (
        ("train", {m["step"]: m["loss"] for m in metrics if "loss" in m}),
        ("valid", {m["step"]: m["valid"]["nll"] for m in metrics
                   if "valid" in m}),
    ):  # fmt: skip
        of_split = model[name]
        assert losses == dict(
            zip(of_split["steps"], of_split["nll"], strict=True)
        )

    # Again, from its numbers; tokens of words are no bytes.
    again = tmp_path / "again.svg"
    _, error = here(
        "plot.py",
        "--picture=learning_curves",
        f"--output={again}",
        f"--numbers={output.with_suffix('.json')}",
        "--labels=another name",
        "--x_axis=tokens",
    )
    assert error is None
    for text in ("another name, valid", "bytes read"):
        assert f"<!-- {text} -->" in again.read_text("utf-8")
    both = f"--workdirs={run[0]},{words_run[0]}"
    _, error = here("plot.py", *flags, both, "--labels=a,b")
    assert "of bytes" in error
    assert "of words" in error


def test_losses_by_position_and_memory_are_those_of_reading(
    group, corpus, here, tmp_path
):
    memory = group[0]
    output = tmp_path / "picture.png"
    flags = (
        "plot.py",
        f"--workdirs={memory}",
        f"--corpus={corpus}",
        f"--output={output}",
        "--max_eval_tokens=16",
        "--batch_size=1",
    )
    _, error = here(*flags, "--picture=positions")
    assert error is None
    numbers = picture_numbers(output)
    assert numbers["corpus"] == str(corpus)
    (of_model,) = numbers["models"]
    assert (of_model["label"], of_model["step"]) == ("memory", 3)
    ids = np.array(list(load_corpus(str(corpus)).read("test")[:16]))[None]
    model, _ = Workdir(str(memory)).load_model()
    state, nll = model.initial_memory(1), []
    for t in range(0, 15, 5):
        inputs, targets = ids[:, t : t + 5], ids[:, t + 1 : t + 6]
        of_segment, state = model.score(inputs, targets, state)
        nll.append(of_segment[0].numpy())
    expected = np.mean(nll, axis=0)
    np.testing.assert_allclose(of_model["nll"], expected, atol=1e-5)
    assert of_model["num_tokens"] == [3] * 5
    np.testing.assert_allclose(
        of_model["standard_error"], np.std(nll, axis=0) / 3**0.5, atol=1e-5
    )

    _, error = here(*flags, "--picture=memory_lengths", "--memory_lengths=7,0")
    assert error is None
    numbers = picture_numbers(output)
    assert numbers["memory_lengths"] == [0, 7]
    losses = numbers["models"][0]["nll"]
    assert losses[1] == pytest.approx(np.mean(nll), abs=1e-5)
    assert abs(losses[0] - losses[1]) > 1e-6


@pytest.mark.large
def test_attention_of_a_run_is_drawn_with_its_words(words_run, here, tmp_path):
    output = tmp_path / "attention.png"
    flags = (f"--output={output}", f"--workdirs={words_run[0]}")
    _, error = here(
        "plot.py",
        *flags,
        "--picture=attention",
        "--segment_length=3",
        "--memory_length=5",
        "--heads=1",
        "--start=20",
    )
    assert error is None
    numbers = picture_numbers(output)
    workdir = Workdir(str(words_run[0]))
    model, _ = workdir.load_model("best")
    tokenizer = workdir.load_tokenizer()
    path = json.loads((words_run[0] / "config.json").read_text())["corpus"]
    tokens = tokenizer.encode(load_corpus(path["corpus"]).read("test"))
    (of_model,) = numbers["models"]
    assert (of_model["layers"], of_model["heads"]) == ([0], [1])
    assert of_model["tokens"] == [
        tokenizer.decode([token]).replace("\n", "↵") for token in tokens[15:23]
    ]
    maps = np.load(tmp_path / "attention.npz")["maps_0"]
    expected = attention_maps_at(model, tokens, [20], 3, 5)
    np.testing.assert_allclose(maps, expected[:, 0, 1:], atol=1e-6)

    _, error = here(
        "plot.py",
        *flags,
        "--picture=attention_by_distance",
        "--num_positions=20",
        "--batch_size=2",
    )
    assert error is None
    (of_model,) = picture_numbers(output)["models"]
    assert of_model["num_segments"] == 3  # of 8 words
    starts = spread_positions(len(tokens) - 7, 3, 16)
    expected = attention_by_distance(
        attention_maps_at(model, tokens, starts, 8)
    )
    np.testing.assert_allclose(
        of_model["attention"], expected.mean(axis=(1, 2)), atol=1e-6
    )


def test_pictures_that_cannot_be_drawn_are_refused_before_any_work(
    group, corpus, here, tmp_path
):
    memory, none, other = group
    output = tmp_path / "picture.png"
    text = f"--corpus={corpus}"
    one, two = f"--workdirs={memory}", f"--workdirs={memory},{none}"
    json_file = tmp_path / "numbers.json"
    json_file.write_text('{"picture": "positions"}')
    for picture, flags, messages in (
        ("attention", [one, text, "--layers=1"], ["`layers`", "layers=[1]"]),
        ("attention", [two, text, "--heads=0,2"], ["`heads`", "from 0 to 1"]),
        ("attention", [one, text, "--start=3"], ["`start` must be from 10"]),
        ("memory_lengths", [one, text, "--memory_lengths=4"], ["two or more"]),
        ("memory_lengths", [one, text, "--memory_lengths=-4,4"], ["=-4"]),
        ("positions", [], ["`workdirs` must be one or more runs"]),
        ("positions", [two], ["`corpus` must be given"]),
        ("positions", [two, text, "--labels=a,a"], ["`labels` must be", "a,a"]),
        ("positions", [f"{one},{other}", text], ["one tokenizer", str(other)]),
        ("positions", [one, text, "--output=a.gif"], [".png or .svg or .pdf"]),
        ("learning_curves", [one], ["were trained", str(memory)]),
        ("recl", [one], ["`numbers` must be given", "recl.py"]),
        ("recl", [f"--numbers={json_file}"], ["picture of recl", "positions"]),
        ("positions", [f"--numbers={json_file}", one], ["exclude each other"]),
    ):
        _, error = here(
            "plot.py", f"--picture={picture}", f"--output={output}", *flags
        )
        for message in messages:
            assert message in error
    assert not output.exists()


# === XLNet ===

XLNET = (
    "--num_layers=1",
    "--num_heads=2",
    "--hidden_dim=8",
    "--intermediate_dim=12",
    "--memory_length=10",
    "--batch_size=4",
    "--segment_length=12",
    "--eval_batch_size=3",
    "--max_steps=30",
    "--eval_every=15",
    "--max_eval_tokens=200",
    "--learning_rate=0.01",
    "--not_predicted=10,255",
    "--reuse_half",
)


@pytest.mark.large
def test_an_xlnet_is_trained_and_comes_back(corpus, here, tmp_path):
    workdir = tmp_path / "run"
    flags = (f"--corpus={corpus}", f"--workdir={workdir}", *XLNET)
    printed, error = here("pretrain_xlnet.py", *flags)
    assert error is None
    assert "of each 12 tokens 2 are predicted, 8 per step" in printed
    results = json.loads((workdir / "results.json").read_text())
    losses = [x["loss"] for x in metrics_of(workdir) if "loss" in x]
    assert losses[-1] < losses[0]
    assert f"test: {results['test']['bits_per_token']:.4f} bits" in printed
    # Far from trained: a guess by frequency knows more.
    assert 2 < results["guess"]["nll"] < results["test"]["nll"] < 5.6
    assert (workdir / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"

    model, step = Workdir(str(workdir)).load_model("best", XLNetPermutationLM)
    assert step == results["step"]
    assert model.backbone.reuse_length == 6
    loaded = keras.saving.load_model(workdir / "model.keras")
    for weight, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(weight, other)

    before = (workdir / "results.json").read_bytes()
    again, error = here("pretrain_xlnet.py", *flags)
    assert error is None
    assert "The run is finished." in again
    assert again.splitlines()[-4:] == printed.splitlines()[-4:]
    assert (workdir / "results.json").read_bytes() == before
    for changed, message in (
        ("--max_span=2", "flags.max_span was 5, now 2"),
        ("--hidden_dim=10", "hidden_dim was 8, now 10"),
    ):
        _, error = here("pretrain_xlnet.py", *flags, changed)
        assert message in error
    _, error = here("generate.py", f"--workdir={workdir}")
    assert "`workdir` must be that of a TransformerXLCausalLM" in error
    assert f"{workdir}, of class XLNetPermutationLM" in error


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--not_predicted=256", "below 256"),
        ("--not_predicted=a", "not_predicted=a"),
        ("--segment_length=13", "`segment_length` must be even"),
        ("--segment_length=10", "segment_length=5, context_factor=6"),
        ("--segment_length=99998", "tokens"),
    ],
)
def test_what_an_xlnet_cannot_be_trained_on_leaves_nothing(
    corpus, here, tmp_path, flag, message
):
    workdir = tmp_path / "run"
    _, error = here(
        "pretrain_xlnet.py", f"--corpus={corpus}", f"--workdir={workdir}",
        *XLNET, flag,
    )  # fmt: skip
    assert message in error
    assert not workdir.exists()
