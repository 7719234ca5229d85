import json
import socket

import pytest
import tensorflow as tf
from script_runs import run_code

from txl_keras.training import strategy as strategies
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


@pytest.mark.parametrize("config", ["worker", "[]", '{"cluster": 3}'])
def test_a_tf_config_that_makes_no_sense_is_shown(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match="TF_CONFIG must be") as error:
        strategies.create_strategy()
    assert config in str(error.value)


@pytest.mark.large  # 30 s
def test_a_worker_that_does_not_come_is_told():
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
        message = "another worker ended, hangs or cannot be reached"
        assert message in process.stderr
        assert f"task:{1 - index}" in process.stderr
