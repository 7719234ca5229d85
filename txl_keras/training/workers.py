"""The workers that TF_CONFIG lists."""

import json
import os

from tensorflow.python.eager import context as eager_context

# Seconds to wait at the start until TensorFlow has connected all workers.
TIMEOUT = 50
# Seconds without a sign of life after which the others give up on a worker that
# hangs. One that ends is noticed earlier, as its connections close.
_HEARTBEAT_TIMEOUT = 30


def read_jobs():
    """Returns the addresses in TF_CONFIG by job, if there are two or more."""
    text = os.environ.get("TF_CONFIG", "").strip()
    try:
        cluster = json.loads(text or "{}").get("cluster", {})
        # The chief is the first worker under another name.
        jobs = {name: [*cluster.get(name, [])] for name in ("chief", "worker")}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            "TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, '
            '"task": {"type": "worker", "index": 0}}. '
            f"Received: {text} ({type(error).__name__}: {error})"
        ) from error
    jobs = {name: addresses for name, addresses in jobs.items() if addresses}
    return jobs if sum(map(len, jobs.values())) > 1 else {}


def bound_waiting(jobs):
    """Limits how long TensorFlow waits for a worker that is missing."""
    # By default it waits an hour for workers to connect, and no signal and no
    # other thread can end that.
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
