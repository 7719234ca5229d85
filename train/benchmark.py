r"""Times the model on this machine, side by side with other ways to do it.

    python train/benchmark.py --experiment=training --preset=quickstart \
        --batch_size=16
    python train/benchmark.py --experiment=evaluation \
        --preset=wikitext103_base --memory_length=640 --segment_length=64 \
        --clamp_length=400 --same_length --batch_size=10
    python train/benchmark.py --experiment=attention --preset=enwik8_base
    python train/benchmark.py --experiment=input_pipeline --batch_size=16
    python train/benchmark.py --experiment=growth --preset=quickstart \
        --contenders=txl_keras --contenders=plain --picture=growth.png
    python train/benchmark.py --experiment=generation \
        --preset=wikitext103_large --memory_length=1600 --clamp_length=1000 \
        --same_length
    python train/benchmark.py --experiment=long_generation \
        --preset=enwik8_base --memory_length=2100 --calls_per_turn=10000
    python train/benchmark.py --experiment=evaluation_speed \
        --preset=enwik8_base --same_length --picture=evaluation_speed.png

Weights are random, and nothing is dropped unless --dropout is given. What is
compared runs in turns in one process, and the medians of all turns count:
times of a shared machine come and go, ratios stay. Utilization is
`model_flops` over that time, over the speed of the best matrix product of the
precision in this process. --peer=hugging_face adds Hugging Face's
Transformer-XL, as it is and by torch.compile, always in float32, in an
environment of its own (--peer_python, see train/peers/hugging_face.py). What
an experiment does says its file in train/benchmarks.

Prints a table and one JSON object; --output=FILE appends that to a file.
"""

import contextlib
import json
import os
import pathlib
import shutil

import tensorflow as tf
from absl import flags

from benchmarks import attention
from benchmarks import evaluation
from benchmarks import evaluation_speed
from benchmarks import generation
from benchmarks import growth
from benchmarks import input_pipeline
from benchmarks import long_generation
from benchmarks import training
from benchmarks.model import build_model
from benchmarks.peer import open_peer
from txl_keras.evaluation.plots import FORMATS
from txl_keras.scripts import model_flags
from txl_keras.scripts import running
from txl_keras.scripts import training_flags

FLAGS = flags.FLAGS

_EXPERIMENTS = {
    "training": training,
    "evaluation": evaluation,
    "attention": attention,
    "input_pipeline": input_pipeline,
    "growth": growth,
    "generation": generation,
    "long_generation": long_generation,
    "evaluation_speed": evaluation_speed,
}
_WITH_PEER = ("training", "evaluation", "generation")
_WITH_PICTURE = ("growth", "evaluation_speed")
# All that an experiment has.
_CONTENDERS = {
    "training": ["txl_keras", "bare", "plain"],
    "evaluation": ["txl_keras", "training_path", "bare", "plain"],
    "attention": ["txl_keras", "bare", "plain"],
}

flags.DEFINE_enum(
    "experiment", None, list(_EXPERIMENTS), "What is timed.", required=True
)
model_flags.define_model_flags()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_integer(
    "vocabulary_size", None, "Default: the preset's.", lower_bound=1
)
flags.DEFINE_integer("batch_size", 1, "Rows.", lower_bound=1)
flags.DEFINE_integer("segment_length", 128, "Tokens of a row.", lower_bound=2)
flags.DEFINE_integer(
    "calls_per_turn", 10,
    "Timed calls in each turn of a contender: training steps, segments to "
    "score, tokens to write, or hundreds of batches (input_pipeline).",
    lower_bound=2,
)  # fmt: skip
flags.DEFINE_integer("turns", 5, "How often each has its turn.", lower_bound=1)
training_flags.define_precision_flag()
flags.adopt_module_key_flags(training_flags)
flags.DEFINE_multi_enum(
    "contenders", None, _CONTENDERS["evaluation"],
    "Of training, evaluation, attention and growth: this code, the same with "
    "its memory as in training (of evaluation alone), bare TensorFlow, and "
    "that with plain attention. Default: all; of growth txl_keras and plain.",
)  # fmt: skip
flags.DEFINE_enum("peer", None, ["hugging_face"], "Whom to compare with.")
flags.DEFINE_string("peer_python", None, "Its Python.")
flags.DEFINE_integer(
    "corpus_tokens", 90_000_000, "Of input_pipeline.", lower_bound=1
)
flags.DEFINE_enum(
    "growth_of", "training", ["training", "evaluation"], "Of growth."
)
for _name, _sizes in {
    "segment_lengths": [128, 256, 512, 1024],
    "memory_lengths": [128, 256, 512, 1024],
    "layer_counts": [2, 4, 8],
    "batch_sizes": [1, 2, 4, 8],
}.items():
    flags.DEFINE_multi_integer(_name, _sizes, "Of growth.", lower_bound=1)
flags.DEFINE_multi_integer(
    "attention_lengths", [800, 1800, 2800, 3800], "Of evaluation_speed.",
    lower_bound=1,
)  # fmt: skip
flags.DEFINE_multi_integer(
    "windows", [1, 2, 4],
    "Of evaluation_speed: how many windows the model without memory may read "
    "at once: the fastest at the shortest length, and at others as many "
    "tokens.", lower_bound=1,
)  # fmt: skip
flags.DEFINE_string("output", None, "File to append the JSON object to.")
flags.DEFINE_string(
    "picture", None,
    f"Of {' and '.join(_WITH_PICTURE)}: {', '.join(FORMATS)}.",
)  # fmt: skip

_ENDINGS = tuple(f".{name}" for name in FORMATS)
_PEERS = pathlib.Path(__file__).parent / "peers"


def main(_):
    _check_backbone()
    _check_contenders()
    _check_peer()
    _check_files()  # before anything is timed
    model = build_model(FLAGS)
    with _peer(model) as peer:
        results = _EXPERIMENTS[FLAGS.experiment].run(model, FLAGS, peer)
    line = json.dumps({**_describe(model), **results})
    print(line)
    if FLAGS.output:
        with _open("output") as file:
            file.write(line + "\n")


def _check_backbone():
    if FLAGS.backbone != "transformer_xl":
        raise ValueError(
            "`backbone` must be transformer_xl, which the others have too. "
            f"Received: --backbone={FLAGS.backbone}"
        )


def _check_contenders():
    """Sees that the experiment has them; sets those of whom none is given."""
    is_growth = FLAGS.experiment == "growth"
    name = FLAGS.growth_of if is_growth else FLAGS.experiment
    all_of_them = _CONTENDERS.get(name, [])
    if FLAGS.contenders is None:
        FLAGS.contenders = ["txl_keras", "plain"] if is_growth else all_of_them
    if FLAGS.contenders and not all_of_them:
        raise ValueError(
            f"`contenders` is of --experiment={', '.join(_CONTENDERS)} or "
            f"growth. Received: --experiment={FLAGS.experiment}"
        )
    wrong = [name for name in FLAGS.contenders if name not in all_of_them]
    if wrong:
        raise ValueError(
            f"`contenders` of --experiment={FLAGS.experiment} must be of "
            f"{all_of_them}. Received: {', '.join(wrong)}"
        )


def _check_peer():
    if not FLAGS.peer:
        return
    if FLAGS.experiment not in _WITH_PEER:
        raise ValueError(
            f"`peer` is of --experiment={' or '.join(_WITH_PEER)}. Received: "
            f"--peer={FLAGS.peer}, --experiment={FLAGS.experiment}"
        )
    if not FLAGS.peer_python:
        raise ValueError(
            f"`peer_python` must be given with `peer`: see "
            f"{_PEERS / FLAGS.peer}.py. Received: --peer_python=None"
        )
    if not shutil.which(FLAGS.peer_python):
        raise ValueError(
            "`peer_python` must be a Python that can be run. Received: "
            f"{FLAGS.peer_python}"
        )


def _check_files():
    if FLAGS.picture and FLAGS.experiment not in _WITH_PICTURE:
        raise ValueError(
            f"`picture` is of --experiment={' or '.join(_WITH_PICTURE)} alone. "
            f"Received: --picture={FLAGS.picture}, "
            f"--experiment={FLAGS.experiment}"
        )
    if FLAGS.picture and not FLAGS.picture.endswith(_ENDINGS):
        raise ValueError(
            f"`picture` must end with {' or '.join(_ENDINGS)}. Received: "
            f"--picture={FLAGS.picture}"
        )
    for name in ("output", "picture"):
        if FLAGS[name].value:
            _open(name).close()


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


def _peer(model):
    if not FLAGS.peer:
        return contextlib.nullcontext()
    script = _PEERS / f"{FLAGS.peer}.py"
    return open_peer(script, FLAGS.peer_python, model, FLAGS.batch_size)


def _describe(model):
    """What was timed."""
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
