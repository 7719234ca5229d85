import json
import socket
from unittest import mock

import pytest
import tensorflow as tf
from script_runs import run_code

from txl_keras.training import strategy as strategies
from txl_keras.training.stopping import EXIT_CODE


@pytest.mark.parametrize("tpu", ["", "local", "my-slice"])
def test_only_a_named_tpu_is_connected_to(monkeypatch, tpu):
    calls = mock.Mock()
    for owner, name in (
        (tf.distribute.cluster_resolver, "TPUClusterResolver"),
        (tf.config, "experimental_connect_to_cluster"),
        (tf.tpu.experimental, "initialize_tpu_system"),
        (tf.distribute, "TPUStrategy"),
    ):
        monkeypatch.setattr(owner, name, getattr(calls, name))
    strategy = strategies.create_strategy(tpu=tpu)
    assert strategy is calls.TPUStrategy.return_value
    resolver = calls.TPUClusterResolver.return_value
    connect = mock.call.experimental_connect_to_cluster(resolver)
    assert calls.mock_calls == [
        mock.call.TPUClusterResolver(tpu=tpu),
        *[connect] * (tpu == "my-slice"),
        mock.call.initialize_tpu_system(resolver),
        mock.call.TPUStrategy(resolver),
    ]


def test_a_tpu_that_is_not_there_is_named(monkeypatch):
    def fail(tpu):
        raise tf.errors.NotFoundError(None, None, "no such node")

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", fail
    )
    with pytest.raises(RuntimeError, match="tpu='gone'.*no such node"):
        strategies.create_strategy(tpu="gone")


def test_several_gpus_are_mirrored(monkeypatch):
    gpus = [tf.config.LogicalDevice(f"/device:GPU:{i}", "GPU") for i in "01"]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", list)
    assert strategies.create_strategy() == ["/device:GPU:0", "/device:GPU:1"]


def test_tpu_and_cpu_devices_exclude_each_other():
    with pytest.raises(ValueError, match="num_cpu_devices=2"):
        strategies.create_strategy(tpu="x", num_cpu_devices=2)
    with pytest.raises(ValueError, match="num_cpu_devices=0"):
        strategies.create_strategy(num_cpu_devices=0)


def test_the_cpu_is_split_before_it_is_used():
    tf.constant(1)
    with pytest.raises(RuntimeError, match="before .*num_cpu_devices=37, whil"):
        strategies.create_strategy(num_cpu_devices=37)


def tf_config(monkeypatch, cluster, index=0, job="worker"):
    task = {"type": job, "index": index}
    config = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)


def test_several_workers_are_mirrored(monkeypatch):
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", lambda: "many"
    )
    monkeypatch.setattr(strategies, "_bound_waiting", lambda _: None)
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
        "strategy.TIMEOUT = 3\n"
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
