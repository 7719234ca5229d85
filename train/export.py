"""Exports a run as a SavedModel that needs only TensorFlow.

    txl export --workdir=runs/quickstart
    txl export --workdir=runs/quickstart --raw_text

The first command writes `runs/quickstart/export/STEP`, whose signatures take
and return token ids. The second writes `runs/quickstart/export_text/STEP`,
whose signatures take and return strings. The folder above STEP is the
`--model_base_path` of TensorFlow Serving. `txl_keras.serving.export` and
`export_text` describe the signatures. `assets/` holds the tokenizer and the
configuration of the run.
"""

import os

import txl_keras.scripts.quiet  # noqa: F401

from absl import flags

from txl_keras.scripts import running
from txl_keras.scripts.exporting import export_run
from txl_keras.scripts.exporting import loading_note
from txl_keras.serving.export import LONGEST_SEGMENT
from txl_keras.serving.served_model import MAX_BATCH_SIZE
from txl_keras.serving.served_model import MAX_GENERATE_LENGTH
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"],
    "Weights to load: those with the best validation score, or the latest.",
)  # fmt: skip
flags.DEFINE_string(
    "output",
    None,
    "Folder to write, NAME/VERSION. Default: WORKDIR/export/STEP, or "
    "WORKDIR/export_text/STEP with --raw_text.",
)
flags.DEFINE_integer(
    "memory_length",
    None,
    "Tokens of memory. Default: as in training, but at least one segment.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "max_segment_length",
    None,
    "Most tokens in a segment of a request. Default: 512, or the number of "
    "absolute positions of the model.",
    lower_bound=1,
    upper_bound=LONGEST_SEGMENT,
)
flags.DEFINE_bool(
    "raw_text",
    False,
    "Export a SavedModel with a built-in tokenizer, which takes and returns "
    "text.",
)
flags.DEFINE_integer(
    "num_slots",
    8,
    "Number of clients whose memory the server can keep; 0 exports no such "
    "signatures.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "max_batch_size",
    MAX_BATCH_SIZE,
    "Limit of the server: the most rows of one request.",
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
    "Dtype in which weights are stored; bfloat16 takes half the space.",
)


def main(_):
    if FLAGS.raw_text and FLAGS["num_slots"].present:
        raise ValueError(
            "`num_slots` must be left out with --raw_text, whose signatures "
            f"keep no memory. Received: --num_slots={FLAGS.num_slots}"
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
    print(f"SavedModel of step {step} written to {path}{note}")


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
