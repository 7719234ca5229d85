"""The workers that TF_CONFIG lists: waiting for them, and missing them."""

import contextlib
import json
import os
import re
import socket
import time
from typing import NamedTuple

from tensorflow.python.eager import context as eager_context

# Seconds to wait for all workers at the start, twice: until they answer, and
# until TensorFlow has connected them.
TIMEOUT = 50
# Seconds without a sign of life after which the others give up on a worker that
# hangs. One that ends is noticed earlier, as its connections close.
_HEARTBEAT_TIMEOUT = 30

# How TensorFlow names workers: those that hang or did not connect, and those
# that a call could not reach. A call that failed in the worker that was called
# has the error of that worker in its own, so that the last name counts. All
# send heartbeats to the first worker, which is not named.
_TASK = r"/job:(\w+)/replica:\d+/task:(\d+)"
_MISSING_TASKS = rf"(?:heartbeats\)|task names):(?:\s|\\+n)*{_TASK}"
_CALLED_TASK = rf"remote target {_TASK}"
_HEARTBEAT = "CoordinationService/Heartbeat"


class Cluster(NamedTuple):
    """Holds the addresses of two or more workers per job, and this index."""

    # The job `chief`, if there is one, comes first: it is the first worker
    # under another name.

    jobs: dict
    index: int

    @property
    def addresses(self):
        """Returns the addresses of all workers."""
        return [address for job in self.jobs.values() for address in job]


def read_cluster():
    """Reads the `Cluster` of TF_CONFIG; `None` unless it lists two or more."""
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs, task = config["cluster"], config["task"]
        if set(jobs) - {"chief", "worker"}:
            raise ValueError("the only jobs are chief and worker")
        jobs = {
            name: jobs[name] for name in ("chief", "worker") if name in jobs
        }
        cluster = Cluster(jobs, index=0)
        for address in cluster.addresses:
            _host_and_port(address)
        if len(set(cluster.addresses)) < len(cluster.addresses):
            raise ValueError("an address appears twice")
        if task["index"] < 0:
            raise ValueError("the index is negative")
        own = jobs[task["type"]][task["index"]]
        index = cluster.addresses.index(own)
    # It may hold anything: a list, a number, an index out of range.
    except Exception as error:
        raise ValueError(
            "TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, '
            '"task": {"type": "worker", "index": 0}}. '
            f"Received: {text} ({type(error).__name__}: {error})"
        ) from error
    return cluster._replace(index=index) if len(cluster.addresses) > 1 else None


def _host_and_port(address):
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def wait_for_workers(cluster):
    """Waits until all workers answer; TensorFlow would wait without end."""
    # Each worker listens at its port until TensorFlow's own server takes it
    # over.
    missing = cluster.addresses
    own = missing.pop(cluster.index)
    _, port = _host_and_port(own)
    deadline = time.monotonic() + TIMEOUT
    try:
        listener = socket.create_server(("", port), backlog=len(missing) + 1)
    except OSError as error:
        raise RuntimeError(
            f"Worker {cluster.index} of TF_CONFIG cannot listen on port {port} "
            f"of {own}: {error}"
        ) from error
    with listener:
        while missing and time.monotonic() < deadline:
            missing = [w for w in missing if not _is_reachable(w)]
            if missing:
                time.sleep(0.2)
    if missing:
        raise RuntimeError(
            f"These workers of TF_CONFIG did not answer within {TIMEOUT} "
            f"seconds: {', '.join(missing)}. Start the same command on every "
            "worker, each with its own task in TF_CONFIG, and make sure that "
            f"they can reach each other. This is worker {cluster.index}, {own}."
        )


def _is_reachable(address):
    with contextlib.suppress(OSError):
        socket.create_connection(_host_and_port(address), timeout=2).close()
        return True
    return False


def bound_waiting(cluster):
    """Limits how long TensorFlow waits for a worker that ends or hangs."""
    # By default it waits an hour for workers to connect, and no signal and no
    # other thread can end that.
    jobs = {name: job for name, job in cluster.jobs.items() if job}
    context = eager_context.context()
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{next(iter(jobs))}/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * TIMEOUT,
        heartbeat_timeout_in_ms=1000 * _HEARTBEAT_TIMEOUT,
        coordinated_jobs=[
            eager_context.coordination_config_pb2.CoordinatedJob(
                name=name, num_tasks=len(job)
            )
            for name, job in jobs.items()
        ],
    )
    # Otherwise the timeout is only that of reaching the first worker.
    context.coordination_service.cluster_register_with_barrier = True


def lost_worker(error, cluster):
    """Returns the index of the worker that an error is about, or `None`."""
    message = str(error)
    found = re.findall(_MISSING_TASKS, message)
    if not found and _HEARTBEAT in message:
        return 0
    found = found or re.findall(_CALLED_TASK, message)
    if not found:
        return None
    job, task = found[-1]
    first = len(cluster.jobs.get("chief", [])) if job == "worker" else 0
    return first + int(task)
