"""Scripts beside this one as workers on this machine."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys


def start(script, *arguments, **environment):
    """Starts a script of this folder, in a process of its own.

    It may import what tests import.
    """
    path = pathlib.Path(__file__).with_name(script)
    search = [str(path.parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, path, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            **environment,
        },
    )


def tf_configs(num_workers=2):
    """The `TF_CONFIG` of each, on ports that were free."""
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(num_workers)
        ]
        workers = [f"127.0.0.1:{x.getsockname()[1]}" for x in listeners]
    return [
        json.dumps(
            {
                "cluster": {"worker": workers},
                "task": {"type": "worker", "index": index},
            }
        )
        for index in range(num_workers)
    ]
