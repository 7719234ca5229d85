"""Runs scripts on a terminal, and where nobody reads what they print."""

import os
import re
import signal

import pytest
from script_runs import metrics_of
from script_runs import results_of

from txl_keras.training.stopping import EXIT_CODE
from txl_keras.workdir import Workdir


def test_a_measurement_shows_a_bar(group, corpus, succeed, terminal, tmp_path):
    succeed(
        "plot.py", "--picture=recl", f"--corpus={corpus}",
        f"--workdirs={group[0]},{group[1]}",
        "--num_positions=7", "--context_lengths=5,6,7",
        f"--output={tmp_path / 'recl.png'}",
    )  # fmt: skip
    printed = terminal.read().decode()
    assert "memory: 100%" in printed
    assert f"Written to {tmp_path / 'recl.png'}" in printed


def test_a_run_whose_terminal_is_closed_resumes(
    run,
    here,
    succeed,
    no_export,
    terminal,
    heeded_signals,
    monkeypatch,
    tmp_path,
):
    def close_after_a_line(workdir, line, append=Workdir.append_metrics):
        append(workdir, line)
        if line["step"] == 14:
            terminal.close()
            # Both the system and the shell send one.
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)

    whole, _, flags = run
    workdir = tmp_path / "stopped"
    # Samples draw nothing that training draws.
    flags = *flags, f"--workdir={workdir}", "--max_sample_tokens=0"
    with monkeypatch.context() as patch:
        patch.setattr(Workdir, "append_metrics", close_after_a_line)
        assert here("main.py", *flags)[1] == EXIT_CODE
    here.stdout = here.stderr = None
    printed = succeed("main.py", *flags)
    (step,) = re.findall(r"^step (\d+) of 60$", printed, re.MULTILINE)
    assert 14 <= int(step) < 60
    assert "sample: " not in printed
    assert not (workdir / "surprise.html").exists()
    assert metrics_of(workdir) == metrics_of(whole)
    assert results_of(workdir) == results_of(whole)


@pytest.fixture
def unread(here):
    """Lets scripts print to a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as here.stdout:
        yield


def test_a_command_writes_its_files_when_nobody_reads_its_output(
    corpus, succeed, unread, tmp_path
):
    succeed("prepare_data.py", f"--corpus={corpus}", f"--data_dir={tmp_path}")
    assert list(tmp_path.rglob("statistics.json"))


def test_a_command_ends_when_nobody_reads_its_result(group, here, unread):
    assert here("generate.py", f"--workdir={group[0]}")[1] == 141
