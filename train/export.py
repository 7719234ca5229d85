"""Writes a run as a SavedModel that needs nothing but TensorFlow.

    python train/export.py --workdir=runs/quickstart

The signatures are described at `txl_keras.serving.export`.
"""

import os

from absl import flags

from txl_keras.scripts import running
from txl_keras.serving import export
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"], "Best by valid, or newest."
)
flags.DEFINE_string(
    "output", None, "Folder to write. Default: WORKDIR/export/STEP."
)
flags.DEFINE_integer(
    "memory_length", None, "Default: as in training.", lower_bound=0
)


def main(_):
    workdir = Workdir(FLAGS.workdir)
    model, step = workdir.load_model(FLAGS.checkpoint)
    path = workdir.file(f"export/{step}")
    if FLAGS.output:
        path = os.path.expanduser(FLAGS.output)
    export(model, path, FLAGS.memory_length)
    print(f"SavedModel of step {step} in {path}")


if __name__ == "__main__":
    running.run(main)
