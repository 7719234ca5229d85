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

import txl_keras.scripts.quiet  # noqa: F401

from txl_keras.models.generation.openvino_graph import WEIGHTS
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts.exporting import export_run
from txl_keras.scripts.exporting import loading_note
from txl_keras.scripts.options import FLAGS
from txl_keras.serving.served_model import LONGEST_SEGMENT
from txl_keras.serving.served_model import MAX_BATCH_SIZE
from txl_keras.serving.served_model import MAX_GENERATE_LENGTH
from txl_keras.workdir import Workdir


class Export(options.Options):
    """Holds the options of this command.

    format: What to write: a SavedModel, or a model for OpenVINO, which reads
        token by token and is faster on CPUs.
    output: Folder to write, NAME/VERSION. Default: WORKDIR/export/STEP, with
        --raw_text WORKDIR/export_text/STEP, and with --format=openvino
        WORKDIR/export_openvino/STEP.
    max_segment_length: Most tokens in a segment of a request. Default: 512, or
        the number of absolute positions of the model.
    raw_text: Export a SavedModel with a built-in tokenizer, which takes and
        returns text.
    num_slots: Number of clients whose memory the server can keep; 0 exports no
        such signatures.
    max_batch_size: Limit of the server: the most rows of one request.
    max_generate_length: Limit of the server: the most tokens that one request
        to `generate` or `generate_text` may ask for.
    num_rows: Rows that --format=openvino reads at once.
    weights_dtype: Dtype in which --format=openvino stores weights.
    """

    format: options.one_of(["saved_model", "openvino"]) = "saved_model"
    output: options.path = None
    max_segment_length: options.integer(1, LONGEST_SEGMENT) = None
    raw_text: bool = False
    num_slots: options.integer(0) = 8
    max_batch_size: options.integer(1, 2**31 - 1) = MAX_BATCH_SIZE
    max_generate_length: options.integer(1, 2**31 - 1) = MAX_GENERATE_LENGTH
    num_rows: options.integer(1) = 1
    weights_dtype: options.one_of(WEIGHTS) = "float32"


Export.define()
trained_model.TrainedModel.define("workdir", workdir=options.REQUIRED)
trained_model.define_memory_flag()


_LIMITS = "max_segment_length", "max_batch_size", "max_generate_length"
# The formats that use a flag, unless all do.
_ONLY_FOR = {
    **dict.fromkeys((*_LIMITS, "num_slots", "raw_text"), ("saved_model",)),
    **dict.fromkeys(("num_rows", "weights_dtype"), ("openvino",)),
}


def main(_):
    is_saved_model = FLAGS.format == "saved_model"
    options.check_used("format", _ONLY_FOR)
    is_wrong = FLAGS.raw_text and FLAGS["num_slots"].present
    expected = "`num_slots` must be left out with --raw_text."
    options.refuse(is_wrong, expected)
    kind, names = "export_openvino", ["num_rows", "weights_dtype"]
    if is_saved_model:
        kind, names = "export", [*_LIMITS, "num_slots"]
    if FLAGS.raw_text:
        kind, names = "export_text", _LIMITS
    workdir = Workdir(FLAGS.workdir)
    model, step = workdir.load_model()
    path = export_run(
        workdir,
        model,
        step,
        FLAGS.output,
        kind,
        memory_length=FLAGS.memory_length,
        **{name: FLAGS[name].value for name in names},
    )
    what = "SavedModel" if is_saved_model else "OpenVINO model"
    note = loading_note(workdir.load_tokenizer()) if FLAGS.raw_text else ""
    print(f"{what} of step {step} written to {path}{note}")


if __name__ == "__main__":
    running.run(main)
