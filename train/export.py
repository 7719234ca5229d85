r"""Exports a run as a SavedModel that needs only TensorFlow.

    txl export --workdir=runs/quickstart
    txl export --workdir=runs/quickstart --raw_text

The first command writes `runs/quickstart/export/STEP`, whose signatures take
and return token ids. The second writes `runs/quickstart/export_text/STEP`,
whose signatures take and return strings. Pass the folder above STEP as
`--model_base_path` to TensorFlow Serving. `export` of `txl_keras.serving`
describes inputs and outputs. `assets/` holds the tokenizer and the
configuration of the run. Extensions add other formats, which are written to
`export_FORMAT/STEP`.
"""

import os

import txl_keras.scripts.quiet  # noqa: F401

from txl_keras.data.corpora.files import check_can_write
from txl_keras.extending import registered
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts.options import FLAGS
from txl_keras.serving.export_folders import check_path
from txl_keras.serving.served_model import LONGEST_SEGMENT
from txl_keras.serving.served_model import MAX_BATCH_SIZE
from txl_keras.serving.served_model import MAX_GENERATE_LENGTH
from txl_keras.workdir import Workdir

_FORMATS = registered("export_format")


class Export(options.Options):
    """Holds the options of this command.

    format: Format to write: a SavedModel, or the format of an extension.
    output: Folder to write, NAME/VERSION. Default: WORKDIR/export/STEP, with
        --raw_text WORKDIR/export_text/STEP, and with another --format
        WORKDIR/export_FORMAT/STEP.
    max_segment_length: Most tokens per segment in a request. Default: 512, or
        the model's number of absolute positions.
    raw_text: Export a SavedModel with a built-in tokenizer, which takes and
        returns text.
    num_slots: Number of clients whose memory the server can keep; with 0, or
        --raw_text, the signatures for them are left out.
    max_batch_size: Limit of the server: most rows per request.
    max_generate_length: Limit of the server: most tokens that one request to
        `generate` or `generate_text` may ask for.
    """

    format: options.one_of(["saved_model", *_FORMATS]) = "saved_model"
    output: options.path = None
    max_segment_length: options.integer(1, LONGEST_SEGMENT) = None
    raw_text: bool = False
    num_slots: options.integer(0) = 8
    max_batch_size: options.integer(1, 2**31 - 1) = MAX_BATCH_SIZE
    max_generate_length: options.integer(1, 2**31 - 1) = MAX_GENERATE_LENGTH


for extra in (Export, *_FORMATS.values()):
    extra.define()
trained_model.TrainedModel.define("workdir", workdir=options.REQUIRED)
trained_model.define_memory_flag()


# Values of --format for flags that only some formats use.
_LIMITS = "max_segment_length", "max_batch_size", "max_generate_length"
_ONLY_FOR = {
    **dict.fromkeys((*_LIMITS, "num_slots", "raw_text"), ("saved_model",)),
    **{n: (name,) for name, other in _FORMATS.items() for n in other.names()},
}


def main(_):
    options.check_used("format", _ONLY_FOR)
    if FLAGS.output is not None:
        parent = os.path.dirname(check_path(FLAGS.output, "output"))
        check_can_write("output", parent or ".")
    workdir = Workdir(FLAGS.workdir)
    model, step = workdir.load_model()
    if FLAGS.format in _FORMATS:
        other = _FORMATS[FLAGS.format]
        values = {"kind": f"export_{FLAGS.format}", "write": other.write}
        values |= other.values()
    else:
        values = {name: FLAGS[name].value for name in (*_LIMITS, "num_slots")}
        if FLAGS.raw_text:
            tokenizer = workdir.load_tokenizer()
            values |= {"kind": "export_text", "tokenizer": tokenizer}
    values["memory_length"] = FLAGS.memory_length
    path = trained_model.export_run(
        workdir, model, step, FLAGS.output, **values
    )
    print(f"Model of step {step} written to {path}")


if __name__ == "__main__":
    running.run(main)
