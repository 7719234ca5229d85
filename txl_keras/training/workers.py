"""The workers that TF_CONFIG lists, and errors about missing ones."""

import json
import os
import re
from typing import NamedTuple

from tensorflow.python.eager import context as eager_context

# Seconds to wait at the start until TensorFlow has connected all workers.
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
            _, port = address.rsplit(":", 1)
            int(port)
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


def bound_waiting(cluster):
    """Limits how long TensorFlow waits for a worker that is missing."""
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
