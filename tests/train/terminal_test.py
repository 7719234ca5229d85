"""Runs scripts on a terminal, and where nobody reads what they print."""

import os

import pytest


def test_a_measurement_shows_a_bar(group, corpus, succeed, terminal, tmp_path):
    succeed(
        "recl.py", f"--workdirs={group[0]},{group[1]}", f"--corpus={corpus}",
        "--num_positions=7", "--context_lengths=5,6,7",
        f"--output={tmp_path / 'recl.json'}",
    )  # fmt: skip
    printed = terminal.read().decode()
    assert "memory: 100%" in printed
    assert f"Written to {tmp_path / 'recl.png'}" in printed


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
    succeed("prepare_data.py", f"--corpus={corpus}", f"--output={tmp_path}")
    assert (tmp_path / "statistics.png").exists()


def test_a_command_ends_when_nobody_reads_its_result(group, here, unread):
    assert here("generate.py", f"--workdir={group[0]}")[1] == 141
