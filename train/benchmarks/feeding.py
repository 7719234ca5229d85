"""Times how fast this machine feeds hosts that run TensorFlow but no Python.

Such hosts belong to a TPU slice that one other machine drives. Processes on
this machine stand in for them and take what they are given as fast as they can,
over gRPC like the hosts of a slice. The contenders:

    read      The batches of a host call are read into memory here.
    sent      `Feed` also sends them to the hosts, and in the meantime the hosts
              take those of the call before.
    service   Each host takes its rows from a tf.data service of its own: a
              process that reads them in Python. This process sends nothing.

Before it is timed, what the hosts took is compared with the text.

Letters: `B` batch, `T` segment.
"""

import contextlib
import functools
import multiprocessing
import socket
import time
import types

import numpy as np
import tensorflow as tf

from benchmarks.made_up_text import made_up_ids
from benchmarks.report import report
from benchmarks.turns import take_turns
from benchmarks.turns import timed
from txl_keras.data import Segments
from txl_keras.data.feed import Feed

_TOKENS = 9_000_000
_DOCUMENT = 30  # tokens, about a sentence of One Billion Word
_BATCHES = 100  # per host call, like --steps_per_execution of a run
_DATASET = "rows"  # the name of the dataset in each service
_SECONDS_TO_START = 120  # several processes import TensorFlow


def run(model, settings, peer=None):
    """Times host calls, as the module describes."""
    if settings.batch_size % settings.hosts:
        raise ValueError(
            "`hosts` must divide `batch_size`. Received: "
            f"hosts={settings.hosts}, batch_size={settings.batch_size}"
        )
    text = (
        model.backbone.vocabulary_size,
        settings.batch_size,
        settings.segment_length,
        settings.order,
    )
    segments = _segments(*text)
    with contextlib.ExitStack() as stack:
        slice_ = _Slice(stack, settings.hosts)
        feed = Feed(segments, slice_)
        services = _services(stack, text, settings.hosts)
        own = slice_.distribute_datasets_from_function(
            lambda context: _from_service(
                segments,
                services[context.input_pipeline_id],
                settings.batch_size // settings.hosts,
            )
        )
        served = iter(own)
        contenders = {
            "read": lambda: segments.distribute(
                _OneHost(), 0, _BATCHES, in_memory=True
            ),
            "sent": lambda: slice_.take(feed.next(_BATCHES)),
            "service": lambda: slice_.take(served),
        }
        _check(contenders, segments, settings.hosts)
        computing = {name: [] for name in contenders}
        times = take_turns(
            {
                name: timed(
                    functools.partial(_call, call, computing[name]),
                    settings.calls_per_turn,
                )
                for name, call in contenders.items()
            },
            settings.turns,
        )
    tokens = _BATCHES * settings.batch_size * settings.segment_length
    found = report(times, "per call", tokens)
    found["computing_s"] = {
        name: float(np.median(seconds)) for name, seconds in computing.items()
    }
    for name, seconds in found["computing_s"].items():
        print(
            f"{name}: {1e6 * seconds / tokens:.3f} s of computing in this "
            "process per million tokens"
        )
    return {
        "hosts": settings.hosts,
        "order": settings.order,
        "segment_length": settings.segment_length,
        **found,
    }


def _segments(vocabulary_size, batch_size, segment_length, order):
    ids = made_up_ids(vocabulary_size, _TOKENS)
    return Segments(
        ids.astype(np.min_scalar_type(vocabulary_size - 1)),
        batch_size,
        segment_length,
        drop_remainder=True,
        documents=np.arange(0, _TOKENS, _DOCUMENT),
        order=order,
    )


def _call(call, computing):
    """Runs a call and notes its seconds of computing in this process."""
    start = time.process_time()
    call()
    computing.append(time.process_time() - start)


def _check(contenders, segments, num_hosts):
    """Checks the sum of the tokens that each host took in the first call."""
    rows = segments.batch_size // num_hosts
    expected = [
        sum(
            int(segments.batch(step, host * rows, rows)["inputs"].sum())
            for step in range(_BATCHES)
        )
        for host in range(num_hosts)
    ]
    for name in ("sent", "service"):
        taken = contenders[name]()
        if taken != expected:
            raise RuntimeError(
                f"The hosts took other tokens than those of the text ({name}): "
                f"their sums are {taken}, not {expected}"
            )


class _OneHost:
    """Reads all rows here."""

    num_replicas_in_sync = 1

    def distribute_datasets_from_function(self, make):
        return make(tf.distribute.InputContext())


class _Slice(tf.distribute.TPUStrategy):
    """Stands in for the strategy of a slice with one replica per host."""

    def __init__(self, stack, num_hosts):
        addresses = _free_addresses(num_hosts)
        _start(
            stack,
            _serve_host,
            [(addresses, index) for index in range(num_hosts)],
        )
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec({"worker": addresses}), job_name="client"
        )
        self._hosts = [
            f"/job:worker/replica:0/task:{index}/device:CPU:0"
            for index in range(num_hosts)
        ]
        self._extended = types.SimpleNamespace(
            worker_devices=self._hosts, _num_replicas_in_sync=num_hosts
        )

    def distribute_datasets_from_function(self, make):
        return _OnHosts(self._hosts, make)

    def take(self, iterators):
        """Takes the batches of a call; returns the sum of each host's."""
        sums = _take(iterators.of_hosts, self._hosts)
        return [int(total) for total in sums]


class _OnHosts:
    """Holds a dataset on each host, as `TPUStrategy` would make them."""

    def __init__(self, hosts, make):
        self._hosts = hosts
        self._datasets = []
        for index, host in enumerate(hosts):
            with tf.device(host):
                context = tf.distribute.InputContext(
                    len(hosts), index, len(hosts)
                )
                self._datasets.append(make(context))

    def __iter__(self):
        return _Iterators(self._hosts, self._datasets)


class _Iterators:
    def __init__(self, hosts, datasets):
        self.of_hosts = []
        for host, dataset in zip(hosts, datasets, strict=True):
            with tf.device(host):
                self.of_hosts.append(iter(dataset))

    def __next__(self):
        raise NotImplementedError("Use `of_hosts`.")


@tf.function
def _take(iterators, hosts):
    sums = []
    for host, iterator in zip(hosts, iterators, strict=True):
        with tf.device(host):
            total = tf.zeros((), tf.int64)
            for _ in tf.range(_BATCHES):
                inputs = next(iterator)["inputs"]
                total += tf.reduce_sum(tf.cast(inputs, tf.int64))
            sums.append(total)
    return sums


def _services(stack, text, num_hosts):
    """Starts a tf.data service per host; returns their addresses."""
    addresses = _free_addresses(num_hosts)
    rows = text[1] // num_hosts
    _start(
        stack,
        _serve_rows,
        [
            (address, text, index * rows, rows)
            for index, address in enumerate(addresses)
        ],
    )
    return addresses


def _from_service(segments, address, rows):
    """Returns the dataset of a service; its one worker keeps their order."""
    service = tf.data.experimental.service
    return service.from_dataset_id(
        service.ShardingPolicy.OFF,
        f"grpc://{address}",
        _DATASET,
        element_spec=segments.dataset(num_rows=rows).element_spec,
    )


def _serve_host(ready, addresses, index):
    cluster = {"worker": addresses}
    server = tf.distribute.Server(cluster, "worker", index, protocol="grpc")
    ready.set()
    server.join()


def _serve_rows(ready, address, text, first_row, num_rows):
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(
        service.DispatcherConfig(port=int(address.rpartition(":")[2]))
    )
    # In this process, because only here its Python can run.
    worker = service.WorkerServer(service.WorkerConfig(address))
    dataset = _segments(*text).dataset(first_row=first_row, num_rows=num_rows)
    service.register_dataset(dispatcher.target, dataset, dataset_id=_DATASET)
    ready.set()
    worker.join()


def _start(stack, function, arguments):
    """Starts a process per item of `arguments`, and waits until they serve."""
    context = multiprocessing.get_context("spawn")
    started = []
    for own in arguments:
        ready = context.Event()
        process = context.Process(target=function, args=(ready, *own))
        process.start()
        stack.callback(process.kill)
        started.append(ready)
    for ready in started:
        if not ready.wait(_SECONDS_TO_START):
            raise RuntimeError(
                "A process that stands in for a host did not start within "
                f"{_SECONDS_TO_START} seconds. It printed the reason above."
            )


def _free_addresses(number):
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("localhost", 0)))
            for _ in range(number)
        ]
        return [f"localhost:{x.getsockname()[1]}" for x in listeners]
