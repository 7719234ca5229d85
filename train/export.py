"""Exports a run: as a SavedModel that needs only TensorFlow, or for OpenVINO.

    txl export --workdir=runs/quickstart
    txl export --workdir=runs/quickstart --raw_text
    txl export --workdir=runs/quickstart --format=openvino --weights_dtype=int8

The first command writes `runs/quickstart/export/STEP`, whose signatures take
and return token ids. The second writes `runs/quickstart/export_text/STEP`,
whose signatures take and return strings. The folder above STEP is the
`--model_base_path` of TensorFlow Serving. The third writes
`runs/quickstart/export_openvino/STEP`, which reads token by token and needs
only OpenVINO. `export` and `export_openvino` of `txl_keras.serving` describe
inputs and outputs. `assets/` holds the tokenizer and the configuration of the
run.
"""

import os

import txl_keras.scripts.quiet  # noqa: F401

from absl import flags

from txl_keras.models.generation.openvino_graph import WEIGHTS
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts.exporting import export_run
from txl_keras.scripts.exporting import loading_note
from txl_keras.serving.served_model import LONGEST_SEGMENT
from txl_keras.serving.served_model import MAX_BATCH_SIZE
from txl_keras.serving.served_model import MAX_GENERATE_LENGTH
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
trained_model.define_checkpoint_flag()
flags.DEFINE_enum(
    "format", "saved_model", ["saved_model", "openvino"],
    "What to write: a SavedModel, or a model for OpenVINO, which reads token "
    "by token and is faster on CPUs.",
)  # fmt: skip
flags.DEFINE_string(
    "output", None,
    "Folder to write, NAME/VERSION. Default: WORKDIR/export/STEP, with "
    "--raw_text WORKDIR/export_text/STEP, and with --format=openvino "
    "WORKDIR/export_openvino/STEP.",
)  # fmt: skip
trained_model.define_memory_flag()
flags.DEFINE_integer(
    "max_segment_length", None,
    "Most tokens in a segment of a request. Default: 512, or the number of "
    "absolute positions of the model.",
    lower_bound=1, upper_bound=LONGEST_SEGMENT,
)  # fmt: skip
flags.DEFINE_bool(
    "raw_text", False,
    "Export a SavedModel with a built-in tokenizer, which takes and returns "
    "text.",
)  # fmt: skip
flags.DEFINE_integer(
    "num_slots", 8,
    "Number of clients whose memory the server can keep; 0 exports no such "
    "signatures.",
    lower_bound=0,
)  # fmt: skip
flags.DEFINE_integer(
    "max_batch_size", MAX_BATCH_SIZE,
    "Limit of the server: the most rows of one request.",
    lower_bound=1, upper_bound=2**31 - 1,
)  # fmt: skip
flags.DEFINE_integer(
    "max_generate_length", MAX_GENERATE_LENGTH,
    "Limit of the server: the most tokens that one request to `generate` or "
    "`generate_text` may ask for.",
    lower_bound=1, upper_bound=2**31 - 1,
)  # fmt: skip
flags.DEFINE_integer(
    "num_rows", 1, "Rows that --format=openvino reads at once.", lower_bound=1
)
flags.DEFINE_enum(
    "weights_dtype", "float32", WEIGHTS,
    "Dtype in which weights are stored; bfloat16 takes half the space. int8 "
    "needs --format=openvino.",
)  # fmt: skip


# The flag that chooses each kind of export, and those that only it has.
_LIMITS = "max_segment_length", "max_batch_size", "max_generate_length"
_KINDS = {
    "export": ("--format=saved_model", (*_LIMITS, "num_slots")),
    "export_text": ("--raw_text", _LIMITS),
    "export_openvino": ("--format=openvino", ("num_rows",)),
}


def main(_):
    is_saved_model, kind = FLAGS.format == "saved_model", "export_openvino"
    if is_saved_model:
        kind = "export_text" if FLAGS.raw_text else "export"
    names = _check_flags(*_KINDS[kind])
    workdir = Workdir(FLAGS.workdir)
    model, step = workdir.load_model(FLAGS.checkpoint)
    path = export_run(
        workdir,
        model,
        step,
        FLAGS.output and os.path.expanduser(FLAGS.output),
        kind,
        memory_length=FLAGS.memory_length,
        weights_dtype=FLAGS.weights_dtype,
        **{name: FLAGS[name].value for name in names},
    )
    what = "SavedModel" if is_saved_model else "OpenVINO model"
    note = loading_note(workdir.load_tokenizer()) if FLAGS.raw_text else ""
    print(f"{what} of step {step} written to {path}{note}")


def _check_flags(used, names):
    """Refuses flags that have no effect; returns the names of the others."""
    if FLAGS.weights_dtype == "int8" and FLAGS.format == "saved_model":
        raise ValueError(
            "`weights_dtype` must be float32 or bfloat16 without "
            "--format=openvino. Received: --weights_dtype=int8"
        )
    unused = {*_LIMITS, "num_slots", "num_rows"} - {*names}
    if FLAGS.format == "openvino" and FLAGS.raw_text:
        unused.add("raw_text")
    for name in sorted(unused):
        if FLAGS[name].present:
            raise ValueError(
                f"`{name}` must be left out with {used}, which has no use for "
                f"it. Received: --{name}={FLAGS[name].value}"
            )
    return names


if __name__ == "__main__":
    running.run(main)
