r"""Times the model on this machine and compares it with other implementations.

    python train/benchmark.py --experiment=training --preset=quickstart \
        --batch_size=16
    python train/benchmark.py --experiment=evaluation \
        --preset=wikitext103_base --memory_length=640 --segment_length=64 \
        --clamp_length=400 --same_length --batch_size=10
    python train/benchmark.py --experiment=attention --preset=enwik8_base
    python train/benchmark.py --experiment=input_pipeline --batch_size=16
    python train/benchmark.py --experiment=feeding --preset=enwik8_large \
        --batch_size=64 --segment_length=768 --hosts=4
    python train/benchmark.py --experiment=growth --preset=quickstart \
        --contenders=txl_keras --contenders=plain --picture=growth.png
    python train/benchmark.py --experiment=generation \
        --preset=wikitext103_large --memory_length=1600 --clamp_length=1000 \
        --same_length --openvino_weights=float32 --openvino_weights=int8
    python train/benchmark.py --experiment=serving --preset=enwik8_base \
        --memory_length=2100 --clamp_length=820 --same_length
    python train/benchmark.py --experiment=long_generation \
        --preset=enwik8_base --memory_length=2100 --calls_per_turn=10000
    python train/benchmark.py --experiment=evaluation_speed \
        --preset=enwik8_base --same_length --picture=evaluation_speed.png

Weights are random, and there is no dropout unless --dropout is given. The
contenders take turns in one process, and each time is the median over all
turns: on a shared machine times vary, but ratios vary much less. Utilization
is `model_flops` per second, divided by the speed of the fastest matmul that
this process reaches in the same precision. --peer=hugging_face adds Hugging
Face's Transformer-XL, eager and through torch.compile, always in float32, in
an environment of its own (--peer_python; see train/peers/hugging_face.py).
Each experiment is described in its file in train/benchmarks.

Prints a table, with the least and the greatest time beside the median, and one
JSON object; --output=FILE appends the object to a file, in the experiment
growth after each point. Warns if other programs keep the processors busy.
"""

import contextlib
import json
import os
import pathlib
import shutil
import sys

import txl_keras.scripts.quiet  # noqa: F401

import tensorflow as tf
from absl import flags

from benchmarks import attention
from benchmarks import evaluation
from benchmarks import evaluation_speed
from benchmarks import feeding
from benchmarks import generation
from benchmarks import growth
from benchmarks import input_pipeline
from benchmarks import long_generation
from benchmarks import serving
from benchmarks import training
from benchmarks.model import build_model
from benchmarks.peer import open_peer
from txl_keras.data.corpora.files import write_text
from txl_keras.data.segments import ORDERS
from txl_keras.evaluation.plots import FORMATS
from txl_keras.models.generation.openvino_decoder import WEIGHTS
from txl_keras.scripts import model_flags
from txl_keras.scripts import running
from txl_keras.scripts import training_flags

FLAGS = flags.FLAGS

_EXPERIMENTS = {
    "training": training,
    "evaluation": evaluation,
    "attention": attention,
    "input_pipeline": input_pipeline,
    "feeding": feeding,
    "growth": growth,
    "generation": generation,
    "long_generation": long_generation,
    "serving": serving,
    "evaluation_speed": evaluation_speed,
}
# The contenders of each experiment.
_CONTENDERS = {
    "training": ["txl_keras", "bare", "plain"],
    "evaluation": ["txl_keras", "training_path", "bare", "plain"],
    "attention": ["txl_keras", "bare", "plain"],
    "growth": ["txl_keras", "bare", "plain"],
}
# The experiments that use a flag.
_ONLY_FOR = {
    "contenders": tuple(_CONTENDERS),
    "peer": ("training", "evaluation", "generation"),
    "openvino_weights": ("generation",),
    "clients": ("serving",),
    "picture": ("growth", "evaluation_speed"),
}

flags.DEFINE_enum(
    "experiment", None, list(_EXPERIMENTS),
    "What to time: see the file of that name in train/benchmarks.",
    required=True,
)  # fmt: skip
model_flags.define_model_flags()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_integer(
    "vocabulary_size", None,
    "Number of tokens in the vocabulary. Default: the preset's.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_integer("batch_size", 1, "Rows per batch.", lower_bound=1)
flags.DEFINE_integer(
    "segment_length", 128, "Tokens per row and segment.", lower_bound=2
)
flags.DEFINE_integer(
    "calls_per_turn", 10,
    "Timed calls in each turn of a contender: training steps, segments to "
    "score, tokens to write or serve, or hundreds of batches (input_pipeline, "
    "feeding).",
    lower_bound=2,
)  # fmt: skip
flags.DEFINE_integer(
    "turns", 5, "Timed turns per contender, after one that does not count.",
    lower_bound=1,
)  # fmt: skip
training_flags.define_precision_flag()
flags.adopt_module_key_flags(training_flags)
flags.DEFINE_multi_enum(
    "contenders", None, _CONTENDERS["evaluation"],
    "Contenders of the experiments training, evaluation, attention and growth: "
    "this library; this library with hidden states as memory, as in training "
    "(evaluation only); bare TensorFlow; bare TensorFlow with plain attention. "
    "Default: all that the experiment has, and txl_keras and plain for growth.",
)  # fmt: skip
flags.DEFINE_multi_enum(
    "openvino_weights", [], WEIGHTS,
    "Dtypes of weights with which OpenVINO generates, too, in the experiment "
    "generation; may be repeated. Default: none.",
)  # fmt: skip
flags.DEFINE_multi_integer(
    "clients", [1, 4, 16],
    "Numbers of clients at the same time, in the experiment serving.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_enum(
    "peer", None, ["hugging_face"],
    "Another library to compare with, in the experiments "
    f"{', '.join(_ONLY_FOR['peer'])}. Default: none.",
)  # fmt: skip
flags.DEFINE_string(
    "peer_python", None,
    "Path of the Python interpreter that runs --peer, which needs packages of "
    "its own.",
)  # fmt: skip
flags.DEFINE_integer(
    "corpus_tokens", 90_000_000,
    "Tokens in the synthetic text of the experiment input_pipeline.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_integer(
    "hosts", 4, "Hosts to send batches to in the experiment feeding.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_enum(
    "order", "sequential", ORDERS,
    "Order of the synthetic text in the experiment feeding. For shuffle, a "
    "document has 30 tokens.",
)  # fmt: skip
for _name, _sizes in {
    "segment_lengths": [128, 256, 512, 1024],
    "memory_lengths": [128, 256, 512, 1024],
    "layer_counts": [2, 4, 8],
    "batch_sizes": [1, 2, 4, 8],
}.items():
    flags.DEFINE_multi_integer(
        _name, _sizes, f"The {_name} that the experiment growth measures.",
        lower_bound=1,
    )  # fmt: skip
flags.DEFINE_multi_integer(
    "attention_lengths", [800, 1800, 2800, 3800],
    "Tokens that each token attends to, in the experiment evaluation_speed.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_multi_integer(
    "windows", [1, 2, 4],
    "Windows per batch to try for the vanilla model in the experiment "
    "evaluation_speed. The fastest at the shortest attention length is kept; "
    "longer windows come in batches of as many tokens.", lower_bound=1,
)  # fmt: skip
flags.DEFINE_string(
    "output", None, "File to append the JSON object to. Default: none."
)
flags.DEFINE_string(
    "picture", None,
    "Picture to draw in the experiments "
    f"{' and '.join(_ONLY_FOR['picture'])}, a file of type "
    f"{', '.join(FORMATS)}. Default: none.",
)  # fmt: skip

_ENDINGS = tuple(f".{name}" for name in FORMATS)
# Share of the processors. This process itself has used one for some seconds.
_BUSY = 0.5
_PEERS = pathlib.Path(__file__).parent / "peers"


def main(_):
    _check_backbone()
    running.check_used("experiment", _ONLY_FOR)
    _check_contenders()
    _check_peer()
    _check_files()  # before anything is timed
    _warn_if_busy()
    model = build_model(FLAGS)
    options = {}
    if FLAGS.experiment == "growth" and FLAGS.output:
        options = {"save": _saver(model)}
    with _peer(model) as peer:
        results = _EXPERIMENTS[FLAGS.experiment].run(
            model, FLAGS, peer, **options
        )
    line = json.dumps({**_describe(model), **results})
    print(line)
    if FLAGS.output and not options:
        with _open("output") as file:
            file.write(line + "\n")


def _warn_if_busy():
    if not hasattr(os, "getloadavg"):  # on Windows
        return
    load, _, _ = os.getloadavg()
    if load > _BUSY * os.cpu_count():
        print(
            f"The machine is busy (load average {load:.1f} on "
            f"{os.cpu_count()} processors): times will be too long and vary. "
            "Ratios between contenders vary less. Stop other programs, and "
            "measure again.",
            file=sys.stderr,
        )


def _saver(model):
    """Returns a function that writes results so far as the last line."""
    path = FLAGS.output
    earlier = pathlib.Path(path).read_text("utf-8")

    def save(results):
        line = json.dumps({**_describe(model), **results})
        write_text(f"{earlier}{line}\n", path)

    return save


def _check_backbone():
    if FLAGS.backbone != "transformer_xl":
        raise ValueError(
            "`backbone` must be transformer_xl, as the other contenders "
            f"implement no LSTM. Received: --backbone={FLAGS.backbone}"
        )


def _check_contenders():
    """Checks `--contenders`, or sets the experiment's default."""
    available = _CONTENDERS.get(FLAGS.experiment, [])
    if FLAGS.contenders is None:
        is_growth = FLAGS.experiment == "growth"
        FLAGS.contenders = ["txl_keras", "plain"] if is_growth else available
    unknown = [name for name in FLAGS.contenders if name not in available]
    if unknown:
        raise ValueError(
            f"`contenders` of --experiment={FLAGS.experiment} must be among "
            f"{available}. Received: {', '.join(unknown)}"
        )


def _check_peer():
    if not FLAGS.peer:
        return
    if not FLAGS.peer_python:
        raise ValueError(
            "`peer_python` must be given with `peer`; how to set it up is "
            f"described in {_PEERS / FLAGS.peer}.py. "
            "Received: --peer_python=None"
        )
    if not shutil.which(FLAGS.peer_python):
        raise ValueError(
            "`peer_python` must be the path of an executable Python. "
            f"Received: --peer_python={FLAGS.peer_python}"
        )


def _check_files():
    if FLAGS.picture and not FLAGS.picture.endswith(_ENDINGS):
        raise ValueError(
            f"`picture` must end with {' or '.join(_ENDINGS)}. Received: "
            f"--picture={FLAGS.picture}"
        )
    for name in ("output", "picture"):
        if FLAGS[name].value:
            _open(name).close()


def _open(name):
    """Opens the file that a flag names, to append to it."""
    path = FLAGS[name].value
    try:
        return open(path, "a")
    except OSError as error:
        raise ValueError(
            f"`{name}` must be a writable file. Received: "
            f"--{name}={path} ({error.strerror})"
        ) from error


def _peer(model):
    if not FLAGS.peer:
        return contextlib.nullcontext()
    script = _PEERS / f"{FLAGS.peer}.py"
    return open_peer(script, FLAGS.peer_python, model, FLAGS.batch_size)


def _describe(model):
    """Returns the settings to record with the results."""
    sizes = (
        "num_layers",
        "num_heads",
        "hidden_dim",
        "head_dim",
        "intermediate_dim",
        "memory_length",
        "same_length",
        "clamp_length",
        "attention_type",
    )
    return {
        "experiment": FLAGS.experiment,
        "preset": FLAGS.preset,
        "precision": FLAGS.precision,
        **{name: getattr(model.backbone, name) for name in sizes},
        "vocabulary_size": model.backbone.vocabulary_size,
        "dropout": model.backbone.dropout,
        "batch_size": FLAGS.batch_size,
        "turns": FLAGS.turns,
        "calls_per_turn": FLAGS.calls_per_turn,
        "cpus": os.cpu_count(),
        "tensorflow": tf.__version__,
    }


if __name__ == "__main__":
    running.run(main)
