import json
import socket

import pytest
import tensorflow as tf
from script_runs import run_code

from txl_keras.training import strategy as strategies
from txl_keras.training import workers
from txl_keras.training.stopping import EXIT_CODE


def tf_config(monkeypatch, cluster, index=0, job="worker"):
    task = {"type": job, "index": index}
    config = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)


def test_several_workers_are_mirrored(monkeypatch):
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", lambda: "many"
    )
    monkeypatch.setattr(strategies, "bound_waiting", lambda _: None)
    tf_config(monkeypatch, {"worker": ["a:1", "b:1"]}, index=1)
    assert strategies.create_strategy() == "many"
    with pytest.raises(ValueError, match="num_cpu_devices=2, TF_CONFIG="):
        strategies.create_strategy(num_cpu_devices=2)


def test_one_worker_alone_needs_no_strategy(monkeypatch):
    tf_config(monkeypatch, {"worker": ["127.0.0.1:1"]})
    assert strategies.create_strategy() is tf.distribute.get_strategy()


@pytest.mark.parametrize(
    "config",
    [
        "worker",
        "[]",
        '{"cluster": {"worker": ["a:1", "b:2"]}}',
        '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", '
        '"index": 0}}',
        '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", '
        '"index": 2}}',
        '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", '
        '"index": -1}}',
        '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", '
        '"index": 0}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
    ],
)
def test_a_tf_config_that_makes_no_sense_is_shown(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match="TF_CONFIG must be") as error:
        strategies.create_strategy()
    assert config in str(error.value)


# As TensorFlow 2.21 raises them, shortened.
HANGS = (
    "Collective ops is aborted by: Error reported from /job:worker/task:2: The "
    "following tasks are unhealthy (stopped sending heartbeats):\n"
    "/job:worker/replica:0/task:2\nThe tasks have crashed."
)
ENDED = (
    "recvmsg:Connection reset by peer\nAdditional GRPC error information from "
    "remote target /job:worker/replica:0/task:2 while calling /tensorflow."
    "WorkerService/RecvBuf:"
)
CASES = {
    HANGS: 2,
    ENDED: 2,
    # Told by the worker before it, which was told by another one.
    f"remote target /job:worker/replica:0/task:3: {ENDED}": 2,
    HANGS.replace("\n", "\\\\n") + ENDED.replace("task:2", "task:1"): 2,
    "Barrier timed out. Some timed out task names:\n/job:worker/replica:0/"
    "task:1\n\nremote target /job:worker/replica:0/task:0": 1,
    ENDED.replace("worker/replica:0/task:2", "chief/replica:0/task:0"): 0,
    # Told by a worker whose heartbeats the first one did not answer.
    "remote target /job:worker/replica:0/task:2 while calling /tensorflow."
    "WorkerService/RecvBuf: Deadline Exceeded\\n\\nRPC: /tensorflow."
    "CoordinationService/Heartbeat": 0,
    "Deadline Exceeded": None,
}


@pytest.mark.parametrize("message", CASES)
def test_an_error_tells_which_worker_was_lost(message, monkeypatch):
    error = tf.errors.UnavailableError(None, None, message)
    tf_config(monkeypatch, {"worker": ["a:1", "b:1", "c:1", "d:1"]}, index=1)
    found = workers.lost_worker(error, workers.read_cluster())
    assert found == CASES[message]
    # The chief comes before all workers.
    tf_config(monkeypatch, {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"]})
    if CASES[message] and "worker" in message:
        found = workers.lost_worker(error, workers.read_cluster())
        assert found == CASES[message] + 1


@pytest.mark.large  # 30 s
def test_a_worker_that_does_not_come_is_named():
    code = (
        "from txl_keras.scripts import running\n"
        "from txl_keras.training import strategy\n"
        "from txl_keras.training import workers\n"
        "workers.TIMEOUT = 3\n"
        "running.run(lambda _: strategy.create_strategy())"
    )
    with socket.create_server(("127.0.0.1", 0)) as own, socket.socket() as two:
        two.bind(("127.0.0.1", 0))  # and never listens
        here, gone = (f"127.0.0.1:{end.getsockname()[1]}" for end in (own, two))
    # TensorFlow connects all to the first worker.
    for index in (0, 1):
        config = {
            "cluster": {"worker": [(here, gone), (gone, here)][index]},
            "task": {"type": "worker", "index": index},
        }
        process = run_code(code, TF_CONFIG=json.dumps(config))
        assert process.returncode == EXIT_CODE, process.stderr
        message = f"Error: worker {1 - index} of TF_CONFIG, {gone}, ended"
        assert message in process.stderr
