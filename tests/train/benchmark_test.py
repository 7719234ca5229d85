"""Runs train/benchmark.py."""

import json
import sys

import pytest
from script_runs import output_of_script

from benchmarks import growth
from benchmarks import report

TINY_BENCHMARK = (
    *("--num_layers=1", "--num_heads=2", "--hidden_dim=16", "--turns=1"),
    *("--intermediate_dim=24", "--memory_length=6", "--segment_length=4"),
    *("--calls_per_turn=2", "--batch_size=3", "--vocabulary_size=7"),
)


def test_benchmark_holds_memory_against_windows_that_slide(
    succeed, fail, tmp_path
):
    picture, output = tmp_path / "slow.png", tmp_path / "slow.jsonl"
    flags = (
        *("--num_layers=1", "--num_heads=2", "--hidden_dim=16"),
        *("--intermediate_dim=24", "--segment_length=4", "--calls_per_turn=2"),
        *("--turns=1", "--windows=2", "--initializer_stddev=0.3"),
        f"--picture={picture}",
    )
    speed = ("benchmark.py", "--experiment=evaluation_speed", *flags)
    printed = succeed(*speed, "--attention_lengths=9", f"--output={output}")
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

    error = fail(*speed, "--attention_lengths=7")
    assert "`attention_lengths` must be at least 2 segments, 8" in error
    error = fail("benchmark.py", "--experiment=evaluation", *flags)
    assert "with --experiment=growth or evaluation_speed" in error
    error = fail(*speed, f"--picture={tmp_path}/slow.gif")
    assert "`picture` must end with .png or .svg or .pdf" in error
    error = fail(*speed, f"--picture={tmp_path}/no/slow.png")
    assert "`picture` must be a writable file" in error


def test_benchmark_times_clients_of_a_saved_model(succeed, tmp_path):
    output = tmp_path / "serving.jsonl"
    flags = ("--experiment=serving", f"--output={output}", "--clients=3")
    printed = succeed("benchmark.py", *flags, *TINY_BENCHMARK)
    line = json.loads(output.read_text())
    names = ["3 clients, a call each", "3 clients in one call"]
    assert list(line["milliseconds"]) == list(line["tokens_per_s"]) == names
    for name, times in line["milliseconds"].items():
        assert 0 < times["median"] <= times["p99"]
        assert name in printed and line["tokens_per_s"][name] > 0


@pytest.mark.large
@pytest.mark.parametrize("experiment", ["training", "evaluation"])
def test_benchmark_times_steps_in_turns(experiment, succeed, tmp_path):
    output = tmp_path / "steps.jsonl"
    succeed(
        "benchmark.py",
        f"--experiment={experiment}",
        f"--output={output}",
        *TINY_BENCHMARK,
    )
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
    succeed, tmp_path, monkeypatch
):
    monkeypatch.setattr(report, "peak_flops", lambda dtype, strategy: 1e9)
    output = tmp_path / "parts.jsonl"
    flags = (f"--output={output}", *TINY_BENCHMARK)
    succeed(
        "benchmark.py", "--experiment=attention", *flags, "--contenders=plain"
    )
    succeed(
        "benchmark.py",
        "--experiment=input_pipeline",
        *flags,
        "--corpus_tokens=200",
    )
    attention, batches = map(json.loads, output.read_text().splitlines())
    work = [
        attention[name]["flops"] for name in ("forward", "forward_and_backward")
    ]
    # 4 (T + S) D N H and 6 T S N H, of three rows.
    assert work[0] == 3 * (4 * (4 + 10) * 16 * 16 + 6 * 4 * 10 * 16)
    assert work[1] == 3 * work[0]
    assert list(attention["forward"]["seconds"]) == ["plain"]
    assert batches["tokens_per_s"]["txl_keras"] > 0


@pytest.mark.large  # half a minute: five processes import TensorFlow
def test_benchmark_feeds_hosts_in_other_processes(tmp_path):
    output = tmp_path / "feeding.jsonl"
    output_of_script(
        "benchmark.py",
        "--experiment=feeding",
        f"--output={output}",
        *TINY_BENCHMARK,
        *("--batch_size=6", "--hosts=2", "--order=shuffle"),
    )
    line = json.loads(output.read_text())
    # What the hosts take is compared with the text before it is timed.
    assert list(line["seconds"]) == ["read", "sent", "service"]
    # The service reads elsewhere.
    assert line["computing_s"]["service"] < line["computing_s"]["read"]


def test_benchmark_feeds_as_many_rows_to_each_host(fail):
    error = fail(
        "benchmark.py", "--experiment=feeding", *TINY_BENCHMARK, "--hosts=2"
    )
    assert "`hosts` must divide `batch_size`. Received: hosts=2" in error


def test_benchmark_measures_each_point_of_growth_alone(
    succeed, fail, tmp_path, monkeypatch, capsys
):
    points, written = [], []
    output = tmp_path / "growth.jsonl"
    output.write_text("earlier\n")

    def in_a_child(function, changes):
        points.append(changes)
        written.append(output.read_text().splitlines())
        return {
            "contender": changes["contenders"][0], "seconds": 0.5,
            "spread": [0.25, 0.75],
            "compile_seconds": 1.0, "utilization": 0.25,
            "step_bytes": 2 * 2**20, "peak_bytes": 5 * 2**20,
            "peak_flops": 3e9,
        }  # fmt: skip

    monkeypatch.setattr(growth, "in_a_child", in_a_child)
    monkeypatch.setattr("os.getloadavg", lambda: (99.5, 0.0, 0.0))
    picture = tmp_path / "growth.png"
    growing = ("benchmark.py", "--experiment=growth", *TINY_BENCHMARK)
    printed = succeed(
        *growing,
        *("--segment_lengths=8", "--segment_lengths=4", "--memory_lengths=9"),
        *("--layer_counts=2", "--batch_sizes=5", f"--picture={picture}"),
        f"--output={output}",
    )
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
    assert "500.0 ms (250.0 to 750.0)" in printed
    assert "machine is busy (load average 99.5" in capsys.readouterr().err
    results = json.loads(printed.splitlines()[-1])["results"]
    # The points so far are in the file before the next is measured.
    written.append(output.read_text().splitlines())
    assert [lines[0] for lines in written] == ["earlier"] * 11
    for i, (_, line) in enumerate(written[1:], start=1):
        assert json.loads(line)["results"] == results[:i]
    assert [(r["by"], r["size"]) for r in results[::2]] == sizes

    points.clear()
    succeed(*growing, "--same_length", f"--picture={picture}")
    assert {tuple(point["contenders"]) for point in points} == {("txl_keras",)}

    error = fail(*growing, "--contenders=training_path")
    assert "`contenders` of --experiment=growth must be among" in error


@pytest.mark.large
def test_a_point_of_growth_is_another_experiment(tmp_path):
    output = tmp_path / "growth.jsonl"
    output_of_script(
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
def test_benchmark_says_what_it_cannot_time(flags, message, fail):
    assert message in fail("benchmark.py", *TINY_BENCHMARK, *flags)
