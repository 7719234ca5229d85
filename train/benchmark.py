r"""Times the model on this machine and compares it with other ways.

    python train/benchmark.py --experiment=training --preset=quickstart \
        --batch_size=16
    python train/benchmark.py --experiment=evaluation \
        --preset=wikitext103_base --memory_length=640 --segment_length=64 \
        --clamp_length=400 --same_length --batch_size=10
    python train/benchmark.py --experiment=generation \
        --preset=wikitext103_large --memory_length=1600 --clamp_length=1000 \
        --same_length --openvino_weights=float32 --openvino_weights=int8
    python train/benchmark.py --experiment=evaluation_speed \
        --preset=enwik8_base --same_length

training          one training step of a run, with Adam and the gradient
                  clipped to a norm of 0.25
evaluation        scoring of one segment. Memory is projected keys and values;
                  in the training path it is hidden states
generation        one token, also by the training path and by OpenVINO; and
                  reading all weights and caches once, a lower bound
evaluation_speed  evaluation with memory against a window that slides by one
                  token, table 9 of Dai et al., 2019

Weights are random, and there is no dropout unless --dropout is given. The
contenders take turns in one process, and each time is the median over all
turns: on a shared machine times vary, but ratios vary much less. Utilization
is `model_flops` per second, divided by the speed of the fastest matmul that
this process reaches in the same precision. --peer_python adds Hugging Face's
Transformer-XL, eager and through torch.compile, always in float32, in an
environment of its own: see train/peers/hugging_face.py.

Prints a table, with the least and the greatest time beside the median, and one
JSON object; --output=FILE appends the object to a file.
"""

import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import shutil
import subprocess
import time

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.data import Segments
from txl_keras.models import SegmentReader
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.generation.generator import Generator
from txl_keras.models.generation.openvino_decoder import WEIGHTS
from txl_keras.models.generation.request import Request
from txl_keras.models.segment_reader import compile_segments
from txl_keras.samplers import Sampler
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import training_flags
from txl_keras.scripts.options import FLAGS
from txl_keras.training.compilation import compile_layers
from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.trainer import Trainer
from txl_keras.training.utilization import device_memory
from txl_keras.training.utilization import model_flops
from txl_keras.training.utilization import peak_flops


class Benchmark(options.Options):
    """Holds the options of this command.

    experiment: What to time, see above.
    calls_per_turn: Timed calls in each turn of a contender: training steps,
        segments to score, or tokens to write.
    turns: Timed turns per contender, after one that does not count.
    openvino_weights: Dtypes of weights with which OpenVINO generates, too, in
        the experiment generation; may be repeated. Default: none.
    peer_python: Path of the Python interpreter of an environment with Hugging
        Face's Transformer-XL, to time that, too. Default: none.
    attention_lengths: Tokens that each token attends to, in the experiment
        evaluation_speed.
    output: File to append the JSON object to. Default: none.
    batch_size: Rows per batch.
    segment_length: Tokens per row and segment.
    vocabulary_size: Number of tokens in the vocabulary. Default: the preset's.
    """

    experiment: options.one_of(
        ["training", "evaluation", "generation", "evaluation_speed"]
    ) = options.REQUIRED
    calls_per_turn: options.integer(2) = 10
    turns: options.integer(1) = 5
    openvino_weights: options.several_of(WEIGHTS) = []
    peer_python: str = None
    attention_lengths: flags.DEFINE_multi_integer = [800, 1800, 2800, 3800]
    output: options.path = None
    batch_size: options.integer(1) = 1
    segment_length: options.integer(2) = 128
    vocabulary_size: options.integer(1) = None


Benchmark.define()
model_flags.define_model_flags()
training_flags.Training.define("precision")

# The experiments that use a flag.
_ONLY_FOR = {
    "openvino_weights": ("generation",),
    "peer_python": ("training", "evaluation", "generation"),
    "attention_lengths": ("evaluation_speed",),
}
_LEARNING_RATE, _CLIP_NORM = 1e-4, 0.25
_SEGMENTS = 64  # segments per row before the text of training repeats
_BANDWIDTH_BYTES = 1 << 29
# Attention length to slowdown, from table 9 of Dai et al., 2019.
_PUBLISHED_SLOWDOWNS = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
_PEER = pathlib.Path(__file__).parent / "peers" / "hugging_face.py"


def main(_):
    _check_flags()  # before anything is timed
    # Not with the dropout of the preset, so that all compute the same.
    for name in ("dropout", "attention_dropout"):
        if FLAGS[name].value is None:
            FLAGS[name].value = 0.0
    model = model_flags.build_model(
        FLAGS.vocabulary_size, None, training_flags.dtype_policy()
    )
    experiment = {
        "training": _training,
        "evaluation": _evaluation,
        "generation": _generation,
        "evaluation_speed": _evaluation_speed,
    }[FLAGS.experiment]
    with _open_peer(model) as peer:
        results = experiment(model, peer)
    settings = {
        **Benchmark.values(),
        "preset": FLAGS.preset,
        "precision": FLAGS.precision,
        **model.backbone.get_config(),
        "cpus": os.cpu_count(),
        "tensorflow": tf.__version__,
    }
    line = json.dumps({**settings, **results})
    print(line)
    if FLAGS.output:
        with open(FLAGS.output, "a") as file:
            file.write(line + "\n")


def _check_flags():
    options.check_used("experiment", _ONLY_FOR)
    if FLAGS.output:
        data_flags.check_writable("output", FLAGS.output)
    options.refuse(
        FLAGS.backbone not in (None, "transformer_xl"),
        "`backbone` must be transformer_xl: the other contenders implement no "
        "other.",
    )
    options.refuse(
        FLAGS.peer_python and not shutil.which(FLAGS.peer_python),
        "`peer_python` must be the path of an executable Python.",
    )


# === Experiments ===

# A contender is a function that makes some calls and returns the seconds of
# each, or raises `_CannotRunError`.


def _training(model, peer):
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
    steps = iter(segments.distribute(strategy))

    count = FLAGS.calls_per_turn

    def train():
        start = time.perf_counter()
        trainer.train(steps, count)
        return [(time.perf_counter() - start) / count]

    contenders = {
        "txl_keras": train,
        **peer("train", segment_length=length, num_steps=count),
    }
    flops = model_flops(model, rows, length, training=True)
    return _measure(model, contenders, "per step", rows * length, flops)


def _evaluation(model, peer):
    rows, length = FLAGS.batch_size, FLAGS.segment_length
    segment = _made_up_segment(model, rows, length)
    count = FLAGS.calls_per_turn
    contenders = {
        "txl_keras": _timed(_segment_scorer(model, rows, length), *segment),
        "training path": _timed(_training_path_scorer(model), *segment),
        **peer("evaluate", segment_length=length, num_segments=count),
    }
    flops = model_flops(model, rows, length)
    return _measure(model, contenders, "per segment", rows * length, flops)


def _segment_scorer(model, rows, length, memory_length=None, first=0):
    """Returns a function that scores a segment from place `first` on."""
    reader = SegmentReader(model.backbone, rows, length, memory_length)
    reader.begin()

    def score(hidden, targets):
        return model.softmax(hidden[:, first:], targets[:, first:])

    return tf.function(compile_segments(reader, model, score))


def _training_path_scorer(model):
    """Returns a scoring function whose memory is hidden states."""
    step = compile_layers(
        model.score, tf.distribute.get_strategy(), model, training=False
    )
    memory = [model.initial_memory(FLAGS.batch_size)]

    def score(inputs, targets):
        nll, memory[0] = step(inputs, targets, memory[0])
        return nll

    return score


def _generation(model, peer):
    rows, count = FLAGS.batch_size, FLAGS.calls_per_turn
    start = np.arange(rows)[:, None] % model.backbone.vocabulary_size
    engines = {"txl_keras": ()} | {
        f"openvino {weights}": ("openvino", weights)
        for weights in FLAGS.openvino_weights
    }
    request = Request(model, start, max_new_tokens=count)
    contenders = {}
    for name, engine in engines.items():
        write = Generator(model, Sampler(temperature=0), None, *engine)
        contenders[name] = lambda write=write: _time_items(
            write(request.continuations())
        )
    contenders |= {
        "training path": _training_path_writer(model),
        "bandwidth": functools.partial(
            _read_memory, np.ones(_BANDWIDTH_BYTES // 4, np.float32)
        ),
    }
    times = _take_turns(contenders | peer("generate", num_tokens=count))
    bandwidth = _BANDWIDTH_BYTES / times["seconds"].pop("bandwidth")
    results = _report(times, "per token", rows)
    num_bytes = _bytes_per_token(model)
    bound = num_bytes / bandwidth
    print(
        f"Each token reads {num_bytes / 1e6:,.0f} MB in {model.compute_dtype}, "
        f"which takes at least {1e3 * bound:.1f} ms at {bandwidth / 1e9:.1f} "
        "GB/s. Times as long:"
    )
    for name, seconds in results["seconds"].items():
        print(f"{name:24} {seconds / bound:.2f}")
    return {**results, "bytes": num_bytes, "bytes_per_s": bandwidth}


def _training_path_writer(model):
    """Returns a contender whose memory is hidden states, as in training."""
    rows = FLAGS.batch_size

    @tf.function(jit_compile=True)
    def step(token, memory):
        log_probs, memory = model.log_probs(token[:, None], memory)
        return tf.argmax(log_probs[:, -1], -1, tf.int32), memory

    state = [tf.zeros(rows, tf.int32), model.initial_memory(rows)]

    def write():
        state[:] = step(*state)
        return state[0]

    return _timed(write)


def _read_memory(array):
    """Times five readings of an array with all cores."""
    parts = np.array_split(array, os.cpu_count())
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        return _time_items(list(pool.map(np.max, parts)) for _ in range(6))


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


def _evaluation_speed(model, peer):
    """Times evaluation with memory against a sliding window."""
    # Both predict each token from as many earlier tokens. The sliding model has
    # the same sizes and the learned positions of Al-Rfou et al.; for each token
    # it reads a whole window and scores only the last token.
    lengths = sorted(set(FLAGS.attention_lengths))
    least = 2 * FLAGS.segment_length
    expected = (
        f"`attention_lengths` must be at least 2 segments, {least} tokens."
    )
    options.refuse(lengths[0] < least, expected)
    config = model.get_config()
    config["backbone"]["config"].update(
        attention_type="al_rfou",
        max_positions=lengths[-1],
        memory_length=0,
        same_length=False,
    )
    sliding = TransformerXLCausalLM.from_config(config)
    results = [_compare(model, sliding, length) for length in lengths]
    return {"memory_length": lengths, "results": results}


def _compare(model, sliding, length):
    """Times both models at one attention length."""
    rows, segment_length = FLAGS.batch_size, FLAGS.segment_length
    score = _segment_scorer(model, rows, segment_length, length)
    segment = _made_up_segment(model, rows, segment_length)
    slide = _segment_scorer(sliding, 1, length, first=-1)
    window = _made_up_segment(model, 1, length)
    seconds = _take_turns(
        {
            "Transformer-XL": _timed(score, *segment),
            # One call per turn: it takes very long.
            "sliding": _timed(slide, *window, count=1),
        }
    )["seconds"]
    ours = seconds["Transformer-XL"] / (rows * segment_length)
    other = seconds["sliding"]
    published = _PUBLISHED_SLOWDOWNS.get(length)
    print(
        f"attention length {length:6,}: {1e3 * ours:.3f} ms per token; sliding "
        f"window {1e3 * other:,.1f} ms, {other / ours:,.0f} times as long"
        + (f" (published: {published:,})" if published else "")
    )
    return {
        "attention_length": length,
        "seconds_per_token": {"Transformer-XL": ours, "sliding": other},
        "slowdown": other / ours,
        "published_slowdown": published,
    }


def _made_up_ids(model, *shape):
    """Draws int32 ids; id r has a frequency of about 1 / r. Same each call."""
    uniform = np.random.default_rng(0).uniform(size=shape)
    return (model.backbone.vocabulary_size**uniform - 1).astype(np.int32)


def _made_up_segment(model, rows, length):
    """Returns inputs and targets, int32 tensors `(B, T)`."""
    text = tf.constant(_made_up_ids(model, rows, length + 1))
    return text[:, :-1], text[:, 1:]


# === Times and reports ===


class _CannotRunError(RuntimeError):
    """Reports that a contender cannot run on this machine."""


def _timed(call, *arguments, count=None):
    """Returns a contender of calls that return a tensor."""
    count = count or FLAGS.calls_per_turn
    return lambda: _time_items(call(*arguments).numpy() for _ in range(count))


def _time_items(items):
    """Returns seconds per item, without the first, which includes set-up."""
    times = [time.perf_counter()]
    times.extend(time.perf_counter() for _ in items)
    return np.diff(times)[1:] if len(times) > 2 else np.diff(times)


def _take_turns(contenders):
    """Returns the median seconds of contenders, and the least and greatest."""
    turns = {}
    for name, contender in contenders.items():
        try:
            contender()  # traces and compiles
        except _CannotRunError as error:
            print(f"Skipping {name}, which cannot run here: {error}")
            continue
        turns[name] = []
    for _ in range(FLAGS.turns):
        for name, seconds in turns.items():
            seconds.extend(contenders[name]())
    return {
        "seconds": {name: float(np.median(x)) for name, x in turns.items()},
        "spread": {
            name: [float(min(x)), float(max(x))] for name, x in turns.items()
        },
    }


def _measure(model, contenders, unit, num_tokens, flops):
    """Times contenders, maybe of another process, and reports utilization."""
    times = _take_turns(contenders)
    dtype = model.compute_dtype
    best = peak_flops(dtype, tf.distribute.get_strategy())
    shares = {k: flops / x / best for k, x in times["seconds"].items()}
    results = _report(times, unit, num_tokens, shares)
    print(
        f"{flops / 1e9:.3g} GFLOP {unit}; the fastest {dtype} matmul reaches "
        f"{best / 1e9:,.0f} GFLOP/s"
    )
    return {
        **results, "flops": flops, "peak_flops": best, "utilization": shares,
    }  # fmt: skip


def _report(times, unit, num_tokens, utilization=None):
    """Prints a table of contenders and returns it as a dictionary for JSON."""
    seconds = times["seconds"]
    speeds = {name: num_tokens / x for name, x in seconds.items()}
    width = max(14, len(f"ms {unit}"))
    print(
        f"{'':24} {f'ms {unit}':>{width}} {'min to max':>18} {'times':>7} "
        f"{'tokens/s':>10} {'utilization':>12}"
    )
    ours = next(iter(seconds.values()))
    for name, median in seconds.items():
        least, greatest = (1e3 * bound for bound in times["spread"][name])
        share = f"{utilization[name]:.3f}" if utilization else ""
        print(
            f"{name:24} {1e3 * median:{width},.2f} "
            f"{f'{least:,.2f} to {greatest:,.2f}':>18} {median / ours:7.2f} "
            f"{speeds[name]:10,.0f} {share:>12}"
        )
    peak = device_memory()["peak"]
    return {**times, "tokens_per_s": speeds, "peak_bytes": peak}


# === Hugging Face, in an environment of its own ===


@contextlib.contextmanager
def _open_peer(model):
    """Yields a function of a task and its sizes that returns contenders."""
    if not FLAGS.peer_python:
        yield lambda task, **sizes: {}
        return
    process = subprocess.Popen(
        [FLAGS.peer_python, "-Wignore", _PEER, json.dumps(_peer_sizes(model))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def answer():
        line = process.stdout.readline()
        try:
            answered = json.loads(line) if line else {"error": "it has ended"}
        except json.JSONDecodeError:
            answered = {"error": f"it printed no JSON but {line.strip()!r}"}
        if "error" in answered:
            raise RuntimeError(
                f"The peer {_PEER}, run by {FLAGS.peer_python}, failed: "
                f"{answered['error']}"
            )
        if "cannot" in answered:
            raise _CannotRunError(answered["cannot"])
        return answered

    def ask(**request):
        print(json.dumps(request), file=process.stdin, flush=True)
        return answer()["seconds"]

    def contenders(task, **sizes):
        ways = {"hugging_face": {}}
        if task != "generate":
            ways["hugging_face compiled"] = {"compiled": True}
        return {
            name: functools.partial(ask, task=task, **sizes, **way)
            for name, way in ways.items()
        }

    try:
        answer()  # the message that the peer is ready
        yield contenders
    finally:
        process.kill()
        process.wait()


def _peer_sizes(model):
    backbone = model.backbone
    # It would ignore these options and time another model.
    for name, value in (
        ("attention_type", "relative"),
        ("normalize_first", False),
        ("normalize_output", False),
    ):
        expected = f"`{name}` must be {value} with --peer_python, whose model"
        is_other = getattr(backbone, name) != value
        options.refuse(is_other, f"{expected} has no other.")
    return {
        **backbone.get_config(),
        "head_dim": backbone.head_dim,
        "batch_size": FLAGS.batch_size,
        "num_threads": os.cpu_count(),
    }


if __name__ == "__main__":
    running.run(main)
