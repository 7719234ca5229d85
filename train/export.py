"""Writes a run as a SavedModel that needs nothing but TensorFlow.

    python train/export.py --workdir=runs/quickstart
    python train/export.py --workdir=runs/quickstart --raw_text

The first writes `runs/quickstart/export/STEP`, the second, which takes strings
and gives strings, `runs/quickstart/export_text/STEP`: the folder above the step
is what TensorFlow Serving takes for `--model_base_path`. The signatures are
described at `txl_keras.serving.export` and `export_text`. The tokenizer and the
configuration of the run lie in `assets/`.
"""

import os

from absl import flags

from txl_keras.scripts import running
from txl_keras.scripts.exporting import export_run
from txl_keras.scripts.exporting import loading_note
from txl_keras.serving.served_model import MAX_BATCH_SIZE
from txl_keras.serving.served_model import MAX_GENERATE_LENGTH
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"], "Best by valid, or newest."
)
flags.DEFINE_string(
    "output",
    None,
    "Folder to write, NAME/VERSION. Default: WORKDIR/export/STEP.",
)
flags.DEFINE_integer(
    "memory_length",
    None,
    "How far back it remembers. Default: as generate.py.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "max_segment_length",
    None,
    "The longest segment of a request. Default: 512, or as many as the model "
    "has absolute positions.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "raw_text",
    False,
    "A SavedModel that takes and gives text, its tokenizer inside. Default "
    "folder: WORKDIR/export_text/STEP.",
)
flags.DEFINE_integer(
    "num_slots",
    8,
    "Clients whose memory the server keeps; 0 leaves that out.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "max_batch_size",
    MAX_BATCH_SIZE,
    "The most rows of one request.",
    lower_bound=1,
    upper_bound=2**31 - 1,
)
flags.DEFINE_integer(
    "max_generate_length",
    MAX_GENERATE_LENGTH,
    "Limit of the server: the most tokens that one request to `generate` or "
    "`generate_text` may ask for.",
    lower_bound=1,
    upper_bound=2**31 - 1,
)
flags.DEFINE_enum(
    "weights_dtype",
    "float32",
    ["float32", "bfloat16"],
    "How weights are stored. bfloat16 takes half the space.",
)


def main(_):
    if FLAGS.raw_text and FLAGS["num_slots"].present:
        raise ValueError(
            "`num_slots` must be left out with --raw_text, which keeps no "
            f"memory. Received: --num_slots={FLAGS.num_slots}"
        )
    workdir = Workdir(FLAGS.workdir)
    model, step = workdir.load_model(FLAGS.checkpoint)
    kind = "export_text" if FLAGS.raw_text else "export"
    path = workdir.file(f"{kind}/{step}")
    if FLAGS.output:
        path = os.path.expanduser(FLAGS.output)
    export_run(
        workdir,
        model,
        step,
        path,
        raw_text=FLAGS.raw_text,
        memory_length=FLAGS.memory_length,
        **_options(),
    )
    note = loading_note(workdir.load_tokenizer()) if FLAGS.raw_text else ""
    print(f"SavedModel of step {step} in {path}{note}")


def _options():
    names = [
        "max_segment_length",
        "weights_dtype",
        "max_batch_size",
        "max_generate_length",
    ]
    if not FLAGS.raw_text:
        names.append("num_slots")
    return {name: FLAGS[name].value for name in names}


if __name__ == "__main__":
    running.run(main)
