r"""Times the model on this machine, side by side with other ways to do it.

    python train/benchmark.py --experiment=generation \
        --preset=wikitext103_large --memory_length=1600 --clamp_length=1000 \
        --same_length
    python train/benchmark.py --experiment=evaluation \
        --preset=wikitext103_base --memory_length=640 --segment_length=64 \
        --clamp_length=400 --same_length --batch_size=10
    python train/benchmark.py --experiment=long_generation \
        --preset=enwik8_base --memory_length=2100 --num_tokens=10000
    python train/benchmark.py --experiment=evaluation_speed \
        --preset=enwik8_base --same_length --picture=evaluation_speed.png

Weights are random. What is compared runs in turns in one process, and the
medians of all turns count: times of a shared machine come and go, ratios stay.
--peer=hugging_face adds Hugging Face's Transformer-XL, in an environment of
its own (--peer_python, see train/peers/hugging_face.py).

evaluation_speed is table 9 of Dai et al., 2019: how many times as long as
Transformer-XL a model without memory takes for a token, where each sees as
many tokens back, the attention length. Transformer-XL reads segments, with a
memory of that length; the other, of the same sizes, with the learned positions
of Al-Rfou et al., a window of that length for each token, of which one is
scored. It may read some windows at once: as many as are fastest.

Prints a table and one JSON object; --output=FILE appends that to a file.
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import resource
import shutil
import subprocess
import time

import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.evaluation.plots import FORMATS
from txl_keras.evaluation.plots import plot_slowdowns
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import presets
from txl_keras.scripts import model_flags
from txl_keras.scripts import running
from txl_keras.serving import Generator
from txl_keras.serving import Sampler

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "experiment", None,
    ["generation", "long_generation", "evaluation", "evaluation_speed"],
    "What is timed.", required=True,
)  # fmt: skip
model_flags.define_model_flags()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_integer("batch_size", 1, "Rows.", lower_bound=1)
flags.DEFINE_integer("segment_length", 128, "Of evaluation.", lower_bound=2)
flags.DEFINE_integer(
    "num_tokens", 10, "Tokens, or segments, of one turn.", lower_bound=2
)
flags.DEFINE_multi_integer(
    "attention_lengths", [800, 1800, 2800, 3800], "Of evaluation_speed.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_multi_integer(
    "windows", [1, 2, 4],
    "How many windows the model without memory may read at once: the fastest "
    "at the shortest length, and at others as many tokens.", lower_bound=1,
)  # fmt: skip
flags.DEFINE_integer("turns", 5, "How often each has its turn.", lower_bound=1)
flags.DEFINE_enum(
    "precision", "float32", ["float32", "mixed_bfloat16"], "Dtype policy."
)
flags.DEFINE_enum("peer", None, ["hugging_face"], "Whom to compare with.")
flags.DEFINE_string("peer_python", None, "Its Python.")
flags.DEFINE_string("output", None, "File to append the JSON object to.")
flags.DEFINE_string(
    "picture", None, f"Of evaluation_speed: {', '.join(FORMATS)}."
)

_ENDINGS = tuple(f".{name}" for name in FORMATS)
_PEERS = pathlib.Path(__file__).parent / "peers"
_BANDWIDTH_BYTES = 1 << 29
# By attention length: table 9 of Dai et al., 2019.
_PUBLISHED_SLOWDOWNS = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def main(_):
    if FLAGS.peer and not FLAGS.peer_python:
        raise ValueError(
            f"`peer_python` must be given with `peer`: see "
            f"{_PEERS / FLAGS.peer}.py. Received: --peer_python=None"
        )
    if FLAGS.peer and not shutil.which(FLAGS.peer_python):
        raise ValueError(
            "`peer_python` must be a Python that can be run. Received: "
            f"{FLAGS.peer_python}"
        )
    if FLAGS.picture and FLAGS.experiment != "evaluation_speed":
        raise ValueError(
            "`picture` is of --experiment=evaluation_speed alone. Received: "
            f"--picture={FLAGS.picture}, --experiment={FLAGS.experiment}"
        )
    if FLAGS.picture and not FLAGS.picture.endswith(_ENDINGS):
        raise ValueError(
            f"`picture` must end with {' or '.join(_ENDINGS)}. Received: "
            f"--picture={FLAGS.picture}"
        )
    for name in ("output", "picture"):
        if FLAGS[name].value:
            _open(name).close()  # before anything is timed
    vocabulary_size = presets.preset_config(FLAGS.preset)["vocabulary_size"]
    model = model_flags.build_model(vocabulary_size, None, FLAGS.precision)
    experiment = {
        "generation": _generation,
        "long_generation": _long_generation,
        "evaluation": _evaluation,
        "evaluation_speed": _evaluation_speed,
    }[FLAGS.experiment]
    results = {
        "experiment": FLAGS.experiment,
        "preset": FLAGS.preset,
        "precision": FLAGS.precision,
        **{
            name: getattr(model.backbone, name)
            for name in (
                "num_layers",
                "hidden_dim",
                "memory_length",
                "same_length",
                "clamp_length",
            )
        },
        "batch_size": FLAGS.batch_size,
        "cpus": os.cpu_count(),
        "tensorflow": tf.__version__,
        **experiment(model),
    }
    line = json.dumps(results)
    print(line)
    if FLAGS.output:
        with _open("output") as file:
            file.write(line + "\n")


def _open(name):
    """The file of a flag, to write at its end."""
    path = FLAGS[name].value
    try:
        return open(path, "a")
    except OSError as error:
        raise ValueError(
            f"`{name}` must be a file that can be written. Received: "
            f"--{name}={path} ({error.strerror})"
        ) from error


def _generation(model):
    contenders = {
        "projected memory": _projected_generation(model),
        "training path": _unprojected_generation(model),
        "bandwidth": _read_memory,
    }
    with _peer(model) as peer:
        if peer:
            contenders[FLAGS.peer] = lambda: peer(
                "generate", num_tokens=FLAGS.num_tokens
            )
        seconds = _take_turns(contenders)
    bandwidth = _BANDWIDTH_BYTES / seconds.pop("bandwidth")
    num_bytes = _bytes_of_a_token(model)
    _print_table(seconds, "ms a token")
    bound = num_bytes / bandwidth
    print(
        f"A token reads {num_bytes / 1e6:,.0f} MB, at {bandwidth / 1e9:.1f} "
        f"GB/s {1e3 * bound:.1f} ms: "
        f"{seconds['projected memory'] / bound:.2f} times that"
    )
    return {"seconds": seconds, "bytes": num_bytes, "bytes_per_s": bandwidth}


def _long_generation(model):
    if FLAGS.num_tokens < 1000:
        raise ValueError(
            "`num_tokens` must be at least 1000 for long_generation. "
            f"Received: num_tokens={FLAGS.num_tokens}"
        )
    write = Generator(model, Sampler(temperature=0))
    times, peaks, start = [], [], None
    for _ in write(_prompts(model), FLAGS.num_tokens):
        now = time.perf_counter()
        if start is not None:
            times.append(now - start)
        start = now
        peaks.append(_peak_mebibytes())
    step = max(1, FLAGS.num_tokens // 10)
    by_position = {}
    for first in range(100, FLAGS.num_tokens - 1, step):
        last = min(first + step, len(times))
        by_position[first] = float(np.median(times[first:last]))
        print(
            f"tokens {first:6} to {last:6}: {1e3 * by_position[first]:8.3f} ms "
            f"a token, peak {peaks[last]:,.0f} MiB"
        )
    return {
        "seconds_by_position": by_position,
        "peak_mebibytes": {first: peaks[first] for first in by_position},
    }


def _evaluation(model):
    contenders = {
        "projected memory": _projected_evaluation(model),
        "training path": _unprojected_evaluation(model),
    }
    with _peer(model) as peer:
        if peer:
            contenders[FLAGS.peer] = lambda: peer(
                "evaluate",
                segment_length=FLAGS.segment_length,
                num_segments=FLAGS.num_tokens,
            )
        seconds = _take_turns(contenders)
    _print_table(seconds, "ms a segment")
    tokens = FLAGS.batch_size * FLAGS.segment_length
    speed = tokens / seconds["projected memory"]
    print(f"With projected memory {speed:,.0f} tokens/s")
    return {"seconds": seconds, "segment_length": FLAGS.segment_length}


def _evaluation_speed(model):
    lengths = sorted(set(FLAGS.attention_lengths))
    if lengths[0] < 2 * FLAGS.segment_length:
        raise ValueError(
            "`attention_lengths` must be at least 2 segments, "
            f"{2 * FLAGS.segment_length} tokens. Received: {lengths[0]}"
        )
    vanilla = _like(
        model,
        attention_type="al_rfou",
        max_positions=lengths[-1],
        memory_length=0,
        same_length=False,
    )
    num_tokens = lengths[0] * _fastest_windows(vanilla, lengths[0])
    batch = _segments(model)
    results = []
    for length in lengths:
        score, reader = _segment_scorer(model, length)
        differences = _check_scores(model, score, reader, length)
        windows = max(1, num_tokens // length)
        seconds = _take_turns(
            {
                "Transformer-XL": _timed(functools.partial(score, *batch)),
                "sliding": _sliding_evaluation(vanilla, length, windows),
            }
        )
        seconds["Transformer-XL"] /= FLAGS.batch_size * FLAGS.segment_length
        seconds["sliding"] /= windows
        results.append(
            {
                "attention_length": length,
                "windows": windows,
                "seconds_per_token": seconds,
                "slowdown": seconds["sliding"] / seconds["Transformer-XL"],
                "published_slowdown": _PUBLISHED_SLOWDOWNS.get(length),
                **differences,
            }
        )
        _print_slowdown(results[-1])
    if FLAGS.picture:
        plot_slowdowns(results, FLAGS.picture)
        print(f"Written to {FLAGS.picture}")
    return {
        "memory_length": lengths,
        "segment_length": FLAGS.segment_length,
        "results": results,
    }


def _like(model, **changes):
    """A model of the same sizes."""
    config = model.get_config()
    config["backbone"]["config"].update(changes)
    return TransformerXLCausalLM.from_config(config)


def _fastest_windows(vanilla, length):
    """How many windows at once take the least time a window."""
    numbers = sorted(set(FLAGS.windows))
    if len(numbers) == 1:
        return numbers[0]
    seconds = _take_turns(
        {n: _sliding_evaluation(vanilla, length, n) for n in numbers}
    )
    for number in numbers:
        seconds[number] /= number
        print(
            f"Windows of {length:,}, {number} at once: "
            f"{1e3 * seconds[number]:,.0f} ms each"
        )
    return min(seconds, key=seconds.get)


def _check_scores(model, score, reader, length):
    """Sees that segments with memory score what a window scores.

    At the beginning of a text memory holds all of it. So the last segment of
    as many as make up the attention length must have the scores that the same
    weights give its tokens where they read them all in one window.

    Returns:
        Dictionary of the largest differences, in nats, from the scores of the
        window: with memory, and without.
    """
    plain = _like(model, memory_length=0, same_length=False)
    plain.set_weights(model.get_weights())
    num_segments = length // FLAGS.segment_length
    text = _text(model, num_segments * FLAGS.segment_length + 1)
    segments = [
        tf.split(part, num_segments, axis=1)
        for part in (text[:, :-1], text[:, 1:])
    ]
    expected = _window_scorer(plain, text[:, :-1], segments[1][-1])()
    reader.begin()
    found = [score(*segment) for segment in zip(*segments, strict=True)][-1]
    reader.begin()
    alone = score(segments[0][-1], segments[1][-1])
    with_memory, without = (
        float(tf.reduce_max(tf.abs(nll - expected))) for nll in (found, alone)
    )
    if not with_memory < 0.1 * without:
        raise RuntimeError(
            f"Transformer-XL must score tokens with a memory of {length:,} as "
            "in one window of all of them. The scores differ by up to "
            f"{with_memory:.2g} nats; without memory by {without:.2g}"
        )
    return {"difference": with_memory, "difference_without_memory": without}


def _print_slowdown(result):
    ours, other = result["seconds_per_token"].values()
    published = result["published_slowdown"]
    print(
        f"{result['attention_length']:6,} tokens back: {1e3 * ours:.3f} ms a "
        f"token, sliding {1e3 * other:,.1f} ms, {result['slowdown']:,.0f} "
        "times as long" + (f" (published: {published:,})" if published else "")
    )
    print(
        f"{'':6} Scores are those of one window to {result['difference']:.1g} "
        f"nats, without memory to {result['difference_without_memory']:.1g}"
    )


def _projected_generation(model):
    write = Generator(model, Sampler(temperature=0))

    def turn():
        return _time_items(write(_prompts(model), FLAGS.num_tokens))

    return turn


def _unprojected_generation(model):
    """The same model, its memory hidden states."""

    @tf.function(jit_compile=True)
    def step(token, memory):
        log_probs, memory = model.log_probs(token[:, None], memory)
        return tf.argmax(log_probs[:, -1], -1, tf.int32), memory

    state = [
        tf.zeros(FLAGS.batch_size, tf.int32),
        model.initial_memory(FLAGS.batch_size),
    ]

    def turn():
        return _time_calls(lambda: _advance(state, step))

    return turn


def _projected_evaluation(model):
    score, _ = _segment_scorer(model)
    batch = _segments(model)
    return _timed(functools.partial(score, *batch))


def _segment_scorer(model, memory_length=None):
    """What scores a segment and remembers it, and its `SegmentReader`."""
    reader = model.backbone.segment_reader(
        FLAGS.batch_size, FLAGS.segment_length, memory_length
    )
    reader.begin()

    @tf.function(jit_compile=True)
    def read(inputs, targets):
        hidden, entries = reader.read(inputs)
        return model.softmax(hidden, targets), entries

    remember = tf.function(reader.remember, jit_compile=True)

    @tf.function
    def score(inputs, targets):
        nll, entries = read(inputs, targets)
        remember(*entries)
        return nll

    return score, reader


def _sliding_evaluation(vanilla, length, windows):
    """One call a turn: it takes as long as many segments."""
    text = _text(vanilla, length + windows)[0]
    inputs = tf.stack([text[i : i + length] for i in range(windows)])
    score = _window_scorer(vanilla, inputs, text[length:, None])
    return _timed(score, num_calls=1)


def _window_scorer(model, inputs, targets):
    """What scores the last tokens of windows, as many as there are targets."""
    reader = model.backbone.segment_reader(*inputs.shape)
    reader.begin()

    @tf.function(jit_compile=True)
    def score(inputs, targets):
        hidden, _ = reader.read(inputs)
        return model.softmax(hidden[:, -targets.shape[1] :], targets)

    # Traced here, or TensorFlow would warn of one more with each length.
    score.get_concrete_function(inputs, targets)
    return lambda: score(inputs, targets)


def _unprojected_evaluation(model):
    @tf.function(jit_compile=True)
    def step(inputs, targets, memory):
        return model.score(inputs, targets, memory)

    batch = _segments(model)
    state = [None, model.initial_memory(FLAGS.batch_size)]

    def turn():
        return _time_calls(
            lambda: _advance(state, lambda _, memory: step(*batch, memory))
        )

    return turn


def _advance(state, step):
    state[:] = step(*state)
    state[0].numpy()


def _segments(model):
    """Inputs and targets `(B, T)`."""
    text = _text(model, FLAGS.segment_length + 1)
    return text[:, :-1], text[:, 1:]


def _text(model, num_tokens):
    """Ids as frequent as words are: word r of V with a share of 1 / r."""
    shape = (FLAGS.batch_size, num_tokens)
    uniform = np.random.default_rng(0).uniform(size=shape)
    ids = model.backbone.vocabulary_size**uniform - 1
    return tf.constant(ids, tf.int32)


def _prompts(model):
    ids = np.arange(FLAGS.batch_size) % model.backbone.vocabulary_size
    return ids[:, None]


def _timed(score, num_calls=None):
    """A turn: seconds of calls that return scores."""
    return lambda: _time_calls(lambda: score().numpy(), num_calls)


def _time_calls(call, num_calls=None):
    return _time_items(call() for _ in range(num_calls or FLAGS.num_tokens))


def _time_items(items):
    """Seconds between items; the first comes with what was set up for all."""
    times = [time.perf_counter()]
    times.extend(time.perf_counter() for _ in items)
    return np.diff(times)[1:] if len(times) > 2 else np.diff(times)


def _read_memory():
    """Seconds to read `_BANDWIDTH_BYTES` with all cores."""
    parts = np.array_split(_big(), os.cpu_count())
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(np.max, parts))
    return [time.perf_counter() - start]


@functools.cache
def _big():
    return np.ones(_BANDWIDTH_BYTES // 4, np.float32)


def _take_turns(contenders):
    """Median seconds of each, after a first turn that does not count."""
    seconds = {name: [] for name in contenders}
    for turn in range(FLAGS.turns + 1):
        for name, contender in contenders.items():
            times = contender()
            if turn:
                seconds[name].extend(times)
    return {name: float(np.median(times)) for name, times in seconds.items()}


def _bytes_of_a_token(model):
    """Of all weights and caches, read once."""
    backbone = model.backbone
    entries = backbone.memory_length * backbone.num_heads * backbone.head_dim
    itemsize = tf.as_dtype(backbone.compute_dtype).size
    caches = 2 * backbone.num_layers * FLAGS.batch_size * entries
    positions = sum(
        int(tf.size(tensor))
        for block in backbone.project_positions(backbone.memory_length + 1)
        for tensor in block
    )
    # Of the positions what they were projected to is read.
    weights = model.count_params() - sum(
        weight.shape.num_elements()
        for weight in backbone.weights
        if "/position/" in weight.path
    )
    return 4 * weights + itemsize * (caches + positions)


def _print_table(seconds, unit):
    ours = seconds["projected memory"]
    for name, value in seconds.items():
        print(f"{name:20} {1e3 * value:10.2f} {unit} {value / ours:8.2f} x")


def _peak_mebibytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class _peer:
    """A program in another environment that does the same on request."""

    def __init__(self, model):
        backbone = model.backbone
        embedding = backbone.token_embedding
        self._process = None
        self._sizes = {
            "vocabulary_size": backbone.vocabulary_size,
            "num_layers": backbone.num_layers,
            "num_heads": backbone.num_heads,
            "hidden_dim": backbone.hidden_dim,
            "head_dim": backbone.head_dim,
            "intermediate_dim": backbone.intermediate_dim,
            "memory_length": backbone.memory_length,
            "same_length": bool(backbone.same_length),
            "clamp_length": backbone.clamp_length or 0,
            "cutoffs": list(embedding.cutoffs),
            "div_val": embedding.div_val,
            "batch_size": FLAGS.batch_size,
            "num_threads": os.cpu_count(),
            "seed": 0,
        }

    def __enter__(self):
        if not FLAGS.peer:
            return None
        self._process = subprocess.Popen(
            [
                FLAGS.peer_python,
                "-Wignore",
                _PEERS / f"{FLAGS.peer}.py",
                json.dumps(self._sizes),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()
        return self._ask

    def _ask(self, task, **arguments):
        request = {"task": task, **arguments}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()["seconds"]

    def _answer(self):
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answer:
            raise RuntimeError(f"The peer {FLAGS.peer}: {answer['error']}")
        return answer

    def __exit__(self, *_):
        if self._process:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    running.run(main)
