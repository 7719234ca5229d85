r"""Measures how far back small models recall what they have read.

    txl recall --output=runs/recall.json
    txl recall --output=runs/recall.json --models=transformer_xl,lstm
    txl plot --picture=recall --numbers=runs/recall.json \
        --output=runs/recall.svg

Each model is trained by `fit` on a stream of `RecallTask`: values are written
with a key and asked for after 1 to 384 tokens. Then the share of right answers
on another stream is measured, by distance. Nothing but memory can help: without
it one of 8 answers is right. The models have about the same number of weights,
and read the same tokens in segments of 32:

transformer_xl  2 layers of 64, a memory of 64 tokens
memory_32       the same with a memory of 32
memory_128      the same with a memory of 128
same_length     as transformer_xl, where every token attends to 64 earlier ones
four_layers     4 narrower layers, a memory of 64
no_recurrence   as transformer_xl without memory
outputs         as transformer_xl, whose blocks remember their outputs
compressive     as transformer_xl with a memory of 32 tokens and 32 slots of 3
lstm            an LSTM, whose state goes on from segment to segment

Writes the JSON file --output after each model, and beside it a picture of the
same name that ends with .png. Models that the file holds already are not
trained again.
"""

import txl_keras.scripts.quiet  # noqa: F401

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.data import RecallTask
from txl_keras.data import Segments
from txl_keras.evaluation.picture_numbers import check_numbers
from txl_keras.evaluation.plots import plot_recall
from txl_keras.evaluation.recall import answers_by_range
from txl_keras.evaluation.recall import attended_share
from txl_keras.evaluation.recall import largest_reach
from txl_keras.evaluation.recall import recall_by_distance
from txl_keras.json_files import read_json
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.scripts import running
from txl_keras.scripts import several_runs
from txl_keras.workdir import write_json

FLAGS = flags.FLAGS

# Label and sizes of each model.
_MODELS = {
    "transformer_xl": ("Transformer-XL, memory 64", {}),
    "memory_32": ("memory 32", {"memory_length": 32}),
    "memory_128": ("memory 128", {"memory_length": 128}),
    "same_length": ("memory 64, same_length", {"same_length": True}),
    "four_layers": (
        "memory 64, 4 layers",
        {"num_layers": 4, "hidden_dim": 48, "intermediate_dim": 72},
    ),
    "no_recurrence": ("no recurrence", {"memory_length": 0}),
    "lstm": ("LSTM", None),
    "outputs": ("memory 64, of outputs", {"memory_source": "outputs"}),
    "compressive": (
        "memory 32 and 32 slots of 3",
        {
            "memory_length": 32,
            "compression": "conv",
            "compression_rate": 3,
            "compressed_length": 32,
        },
    ),
}
_TRANSFORMER_XL = {
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 64,
    "intermediate_dim": 128,
    "memory_length": 64,
}
# Best among deviations of 0.1, 0.3 and 1 and rates of 2e-3, 5e-3 and 1e-2.
_LSTM = {"num_layers": 1, "hidden_dim": 95, "initializer_stddev": 0.3}
_BATCH_SIZE = 32
_SEGMENT_LENGTH = 32
_EDGES = [1, *range(16, 385, 16)]

flags.DEFINE_string("output", None, "JSON file to write.", required=True)
flags.DEFINE_list(
    "models", list(_MODELS), "The models to train, names of the list above."
)
flags.DEFINE_integer(
    "max_steps", 1600, "Training steps of each model.", lower_bound=1
)
flags.DEFINE_integer(
    "max_eval_tokens", 131_072, "Tokens of the stream to measure on.",
    lower_bound=2,
)  # fmt: skip
flags.DEFINE_float(
    "learning_rate", 2e-3, "Learning rate of Adam.", lower_bound=0
)
flags.DEFINE_integer(
    "seed", 0, "Seed of the weights and of the stream of training.",
    lower_bound=0,
)  # fmt: skip


def main(_):
    output = several_runs.output_path(
        (".json",), "a picture is written beside it"
    )
    several_runs.check_replaces(output, ["recall"])
    unknown = [name for name in FLAGS.models if name not in _MODELS]
    if unknown or not FLAGS.models:
        raise ValueError(
            f"`models` must be names among {', '.join(_MODELS)}. Received: "
            f"--models={','.join(FLAGS.models)}"
        )
    task = RecallTask()
    _check_stream(task)
    numbers = _begin(output, task)
    for name in FLAGS.models:
        label, _ = _MODELS[name]
        if label in [model["label"] for model in numbers["models"]]:
            continue
        print(f"{label}:", flush=True)
        numbers["models"].append({"label": label, **_measure(name, task)})
        write_json(numbers, output)
    picture = output.removesuffix(".json") + ".png"
    plot_recall(numbers, picture)
    print(f"Written to {output}\nWritten to {picture}")


def _check_stream(task):
    """Checks the stream to measure on before any model is trained."""
    try:
        answers_by_range(
            task, _stream(task), _BATCH_SIZE, _SEGMENT_LENGTH, _EDGES
        )
    except ValueError as error:
        raise ValueError(
            "`max_eval_tokens` must be more, such as 30,000: no token is "
            "measured at one of the distances. Received: --max_eval_tokens="
            f"{FLAGS.max_eval_tokens}"
        ) from error


def _stream(task):
    return task.stream(FLAGS.max_eval_tokens, seed=FLAGS.seed + 1)


def _begin(output, task):
    """Returns the numbers to add models to: new, or those of `output`."""
    numbers = {
        "picture": "recall",
        "max_steps": FLAGS.max_steps,
        "max_eval_tokens": FLAGS.max_eval_tokens,
        "learning_rate": FLAGS.learning_rate,
        "seed": FLAGS.seed,
        "batch_size": _BATCH_SIZE,
        "segment_length": _SEGMENT_LENGTH,
        "chance": 1 / task.num_values,
        "models": [],
    }
    if not tf.io.gfile.exists(output):
        return numbers
    found = read_json(output)
    check_numbers(found, "recall", output)
    if {**found, "models": []} != numbers:
        raise ValueError(
            "`output` must be a new file, or one of the same settings, to "
            f"which models are added. Received: --output={output}, with "
            f"{ {k: v for k, v in found.items() if k != 'models'} }"
        )
    return found


def _build(name, task):
    """Returns a new model, and what its tokens attend to at a distance."""
    keras.utils.set_random_seed(FLAGS.seed)
    common = {
        "vocabulary_size": task.vocabulary_size,
        # With the usual 0.02 learning takes several times as many steps.
        "initializer_stddev": 0.1,
    }
    _, changes = _MODELS[name]
    if changes is None:
        return TransformerXLCausalLM(LSTMBackbone(**{**common, **_LSTM}))
    sizes = {**_TRANSFORMER_XL, **changes}
    return TransformerXLCausalLM(TransformerXLBackbone(**common, **sizes))


def _measure(name, task):
    """Trains a model and returns its facts and its accuracy by distance."""
    model = _build(name, task)
    backbone = model.backbone
    tokens = task.stream(
        FLAGS.max_steps * _BATCH_SIZE * _SEGMENT_LENGTH + 1, seed=FLAGS.seed
    )
    segments = Segments(
        tokens, _BATCH_SIZE, _SEGMENT_LENGTH, drop_remainder=True
    )
    dataset = segments.dataset(num_steps=FLAGS.max_steps)
    model.compile(
        keras.optimizers.Adam(
            FLAGS.learning_rate, epsilon=1e-9, global_clipnorm=1.0
        )
    )
    history = model.fit(dataset.map(task.score_answers), verbose=2)
    parts = recall_by_distance(
        model,
        task,
        _stream(task),
        _BATCH_SIZE,
        _SEGMENT_LENGTH,
        _EDGES,
    )
    facts = {
        "weights": model.count_params(),
        "num_layers": backbone.num_layers,
        "loss": history.history["loss"][-1],
        **{key: [part[key] for part in parts] for key in parts[0]},
    }
    if backbone.has_attention:
        facts["memory_length"] = backbone.past_tokens()
        facts["attended"] = [_attended(part, backbone) for part in parts]
    if backbone.has_finite_reach:
        facts["reach"] = largest_reach(
            backbone.num_layers,
            _SEGMENT_LENGTH,
            backbone.memory_length,
            backbone.same_length,
        )
    return facts


def _attended(part, backbone):
    """Returns the share of a range's answers within direct attention."""
    distances = np.arange(part["start"], part["stop"])
    shares = attended_share(
        distances,
        _SEGMENT_LENGTH,
        backbone.past_tokens(),
        backbone.same_length,
    )
    return float(np.average(shares, weights=1 / distances))  # log-uniform


if __name__ == "__main__":
    running.run(main)
