"""Runs train/demo.py."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from script_runs import TRAIN

from txl_keras.pages.server import DemoServer


def test_demo_prints_its_address(group, here, monkeypatch):
    served = []
    monkeypatch.setattr(
        DemoServer, "serve_forever", lambda server: served.append(server)
    )
    flags = (f"--workdir={group[0]}", "--port=0")
    printed, error = here("demo.py", *flags)
    assert error is None
    (server,) = served
    assert f"Open {server.url} in a browser" in printed
    assert server.is_local and "Playground" in server.page
    server.server_close()


def test_demo_checks_flags_before_it_loads(group, here):
    for wrong in ([], [f"--workdir={group[0]}", f"--preset={group[1]}"]):
        _, error = here("demo.py", "--port=0", *wrong)
        assert "Either `workdir` or `preset` must be given" in error
    with DemoServer("127.0.0.1", 0) as server:
        port = server.server_address[1]
        _, error = here("demo.py", "--workdir=none", f"--port={port}")
    assert f"--port={port}" in error and "`port` one that is free" in error


@pytest.mark.large  # 15 seconds: a process of its own
def test_demo_serves_until_it_is_stopped(group):
    command = [sys.executable, TRAIN / "demo.py", f"--workdir={group[0]}"]
    with subprocess.Popen(
        [*command, "--port=0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            url = re.search("http://[^ ]+", process.stdout.readline())[0]
            assert b"Playground" in urllib.request.urlopen(url).read()
            question = urllib.request.Request(
                f"{url}surprise",
                json.dumps({"text": "to be"}).encode(),
                {"Content-Type": "application/json"},
            )
            answer = urllib.request.urlopen(question).read()
            assert answer.endswith(b'{"done": true}\n')
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 130
