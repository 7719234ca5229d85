from unittest import mock

import pytest
import tensorflow as tf

from txl_keras.training import strategy as strategies


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


def test_host_loop_gives_the_results_of_each_step():
    run = strategies.host_loop(
        tf.distribute.get_strategy(),
        lambda x: {"square": x * x, "double": 2 * x},
    )
    iterator = iter(tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0]))
    first = run(iterator, tf.constant(3))
    assert first.keys() == {"square", "double"}
    assert first["square"].numpy().tolist() == [1.0, 4.0, 9.0]
    assert first["double"].numpy().tolist() == [2.0, 4.0, 6.0]
    assert run(iterator, tf.constant(1))["square"].numpy().tolist() == [16.0]
