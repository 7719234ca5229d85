r"""Times the model on this machine and compares it with other implementations.

    python train/benchmark.py --experiment=training --preset=quickstart \
        --batch_size=16
    python train/benchmark.py --experiment=evaluation \
        --preset=wikitext103_base --memory_length=640 --segment_length=64 \
        --clamp_length=400 --same_length --batch_size=10
    python train/benchmark.py --experiment=generation \
        --preset=wikitext103_large --memory_length=1600 --clamp_length=1000 \
        --same_length

training     one training step of a run, with Adam and the gradient clipped to
             a norm of 0.25
evaluation   scoring of one segment. Memory is projected keys and values; in the
             training path it is hidden states
generation   one token, also with engines of extensions; and reading all weights
             and caches once, a lower bound

Weights are random, and there is no dropout unless --dropout is given. The
contenders take turns in one process. Each time is the median over all turns: on
a shared machine times vary, but ratios vary much less. Utilization is
`model_flops` per second divided by the speed of the fastest matmul here in the
same precision. --peer_python adds Hugging Face's Transformer-XL (post-norm,
float32), eager and through torch.compile: see train/peers/hugging_face.py.

Prints a table and, in the last line, a JSON object.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import time

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.compilation import compile_layers
from txl_keras.data import Segments
from txl_keras.models import SegmentReader
from txl_keras.optimizers import build_optimizer
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import training_flags
from txl_keras.scripts.options import FLAGS
from txl_keras.training import utilization
from txl_keras.training.trainer import Trainer


class Benchmark(options.Options):
    """Holds the options of this command.

    experiment: Experiment to run, see above.
    calls_per_turn: Timed calls in each turn of a contender: training steps,
        segments to score, or tokens to write.
    turns: Timed turns per contender, after one warm-up turn.
    engine: Engine to add to the experiment generation, with its arguments:
        NAME,ARGUMENT=VALUE. May be repeated. Default: none.
    peer_python: Python interpreter of an environment with Hugging Face's
        Transformer-XL, which is then timed, too. Default: none.
    batch_size: Rows per batch.
    segment_length: Tokens per row and segment.
    vocabulary_size: Number of tokens in the vocabulary. Default: the preset's.
    """

    experiment: options.one_of(["training", "evaluation", "generation"]) = (
        options.REQUIRED
    )
    calls_per_turn: options.integer(2) = 10
    turns: options.integer(1) = 5
    engine: flags.DEFINE_multi_string = []
    peer_python: str = None
    batch_size: options.integer(1) = 1
    segment_length: options.integer(2) = 128
    vocabulary_size: options.integer(1) = None


Benchmark.define()
model_flags.define_model_flags()
training_flags.Training.define("precision")

_LEARNING_RATE, _CLIP_NORM = 1e-4, 0.25
_SEGMENTS = 64  # segments per row before the training text repeats
_BANDWIDTH_BYTES = 1 << 29
_PEER = pathlib.Path(__file__).parent / "peers" / "hugging_face.py"


def main(_):
    # Without the preset's dropout, so that all contenders compute the same.
    for name in ("dropout", "attention_dropout"):
        if FLAGS[name].value is None:
            FLAGS[name].value = 0.0
    model = model_flags.build_model(
        FLAGS.vocabulary_size, None, training_flags.dtype_policy()
    )
    settings = {
        **Benchmark.values(),
        "preset": FLAGS.preset,
        "precision": FLAGS.precision,
        **model.backbone.get_config(),
        "cpus": os.cpu_count(),
        "tensorflow": tf.__version__,
    }
    results = _EXPERIMENTS[FLAGS.experiment](model)
    print(json.dumps({**settings, **results}))


# === Experiments ===

# A contender is a function that makes some calls and returns the seconds of
# each call.


def _training(model):
    rows, length = FLAGS.batch_size, FLAGS.segment_length
    strategy = tf.distribute.get_strategy()
    trainer = Trainer(
        model,
        build_optimizer("adam", _LEARNING_RATE),
        strategy,
        rows,
        clip_norm=_CLIP_NORM,
    )
    ids = _made_up_ids(model, rows * length * _SEGMENTS + 1)
    if model.backbone.vocabulary_size <= 256:
        ids = ids.astype(np.uint8)  # the dtype in which a run stores its text
    segments = Segments(ids, rows, length, drop_remainder=True)
    steps, count = iter(segments.distribute(strategy)), FLAGS.calls_per_turn

    def train():
        start = time.perf_counter()
        trainer.train(steps, count)
        return [(time.perf_counter() - start) / count]

    flops = utilization.model_flops(model, rows, length, training=True)
    return _measure(model, {"txl_keras": train}, rows * length, flops)


def _evaluation(model):
    rows, length = FLAGS.batch_size, FLAGS.segment_length
    step = compile_layers(
        model.score, tf.distribute.get_strategy(), model, training=False
    )
    memory = [model.initial_memory(rows)]  # hidden states

    def score(inputs, targets):
        nll, memory[0] = step(inputs, targets, memory[0])
        return nll

    reader = SegmentReader(model.backbone, rows, length)
    reader.begin()
    read = reader.compile_segments(model.softmax)
    text = tf.constant(_made_up_ids(model, rows, length + 1))
    segment = text[:, :-1], text[:, 1:]
    contenders = {
        "txl_keras": _timed(
            tf.function(lambda *args: read(None, *args)), segment
        ),
        "training path": _timed(score, segment),
    }
    flops = utilization.model_flops(model, rows, length)
    return _measure(model, contenders, rows * length, flops)


def _generation(model):
    rows = FLAGS.batch_size
    contenders = {"txl_keras": _writer(model, "tensorflow")}
    for engine in FLAGS.engine:
        name, *arguments = engine.split(",")
        arguments = dict(argument.split("=") for argument in arguments)
        contenders[engine] = _writer(model, name, **arguments)
    results = _measure(model, contenders, rows)
    num_bytes, bandwidth = _bytes_per_token(model), _bandwidth()
    bound = num_bytes / bandwidth
    print(
        f"Each token reads {num_bytes / 1e6:,.0f} MB in {model.compute_dtype}, "
        f"which takes at least {1e3 * bound:.1f} ms at {bandwidth / 1e9:.1f} "
        "GB/s."
    )
    return {**results, "bytes": num_bytes, "bytes_per_s": bandwidth}


def _writer(model, engine, **arguments):
    """Returns a contender that generates one token after another."""
    prompts = np.arange(FLAGS.batch_size) % model.backbone.vocabulary_size
    return lambda: _time_items(
        model.generate(
            prompts[:, None],
            max_new_tokens=FLAGS.calls_per_turn,
            sampler="greedy",
            stream=True,
            engine=engine,
            **arguments,
        )
    )


def _bandwidth():
    """Returns how many bytes per second all cores read."""
    array = np.ones(_BANDWIDTH_BYTES // 4, np.float32)
    parts = np.array_split(array, os.cpu_count())
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        seconds = _time_items(list(pool.map(np.max, parts)) for _ in range(9))
    return _BANDWIDTH_BYTES / float(np.median(seconds))


def _bytes_per_token(model):
    """Returns the size of all weights and caches, each read once per token."""
    # Generation reads the projected positions, not their kernels.
    weights = model.count_params() - sum(
        weight.shape.num_elements()
        for weight in model.backbone.weights
        if "/position/" in weight.path
    )
    reader = SegmentReader(model.backbone, FLAGS.batch_size, 1)
    return 4 * weights + reader.num_bytes


_EXPERIMENTS = {
    "training": _training,
    "evaluation": _evaluation,
    "generation": _generation,
}


def _made_up_ids(model, *shape):
    """Draws the same int32 ids in each call; id r has about frequency 1 / r."""
    uniform = np.random.default_rng(0).uniform(size=shape)
    return (model.backbone.vocabulary_size**uniform - 1).astype(np.int32)


# === Times and reports ===


def _timed(call, arguments):
    """Returns a contender of calls that return a tensor."""
    calls = range(FLAGS.calls_per_turn)
    return lambda: _time_items(call(*arguments).numpy() for _ in calls)


def _time_items(items):
    """Returns seconds per item, without the first, which includes set-up."""
    times = [time.perf_counter()]
    times.extend(time.perf_counter() for _ in items)
    return np.diff(times)[1:] if len(times) > 2 else np.diff(times)


def _measure(model, contenders, num_tokens, flops=None):
    """Times contenders, prints a table and returns it for JSON."""
    times = {name: [] for name in contenders}
    for contender in contenders.values():
        contender()  # traces and compiles
    for _ in range(FLAGS.turns):
        for name, contender in contenders.items():
            times[name].extend(contender())
    if FLAGS.peer_python:
        times |= _time_peer(model)
    results = {
        "seconds": {name: float(np.median(x)) for name, x in times.items()},
    }
    if flops:
        best = utilization.peak_flops(model.compute_dtype)
        print(
            f"{flops / 1e9:.3g} GFLOP per call; the fastest "
            f"{model.compute_dtype} matmul reaches {best / 1e9:,.0f} GFLOP/s"
        )
        results["utilization"] = {
            name: flops / seconds / best
            for name, seconds in results["seconds"].items()
        }
    print(
        f"{'':24} {'ms per call':>14} {'times':>7} {'tokens/s':>10} "
        f"{'utilization':>12}"
    )
    ours = results["seconds"]["txl_keras"]
    for name, median in results["seconds"].items():
        share = f"{results['utilization'][name]:.3f}" if flops else ""
        print(
            f"{name:24} {1e3 * median:14,.2f} {median / ours:7.2f} "
            f"{num_tokens / median:10,.0f} {share:>12}"
        )
    return results


def _time_peer(model):
    """Returns the seconds of Hugging Face's model, eager and compiled."""
    settings = {
        **model.backbone.get_config(),
        **Benchmark.values(),
        "head_dim": model.backbone.head_dim,
        "vocabulary_size": model.backbone.vocabulary_size,
        "num_threads": os.cpu_count(),
    }
    done = subprocess.run(
        [FLAGS.peer_python, "-Wignore", _PEER, json.dumps(settings)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    running.run(main)
