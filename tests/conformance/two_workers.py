"""Two workers on this machine."""

import contextlib
import json
import socket


def tf_configs():
    """The `TF_CONFIG` of each, on ports that were free."""
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(2)
        ]
        workers = [f"127.0.0.1:{x.getsockname()[1]}" for x in listeners]
    return [
        json.dumps(
            {
                "cluster": {"worker": workers},
                "task": {"type": "worker", "index": index},
            }
        )
        for index in range(2)
    ]
