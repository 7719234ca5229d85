"""Averages the latest checkpoints of a run into a new run.

    txl average --workdir=runs/mine --output=runs/mine_average
    txl evaluate --workdir=runs/mine_average

Training keeps the latest two checkpoints; --max_to_keep makes it keep more.
"""

import txl_keras.scripts.quiet  # noqa: F401

from absl import flags

from txl_keras.scripts import running
from txl_keras.training.bundles import average_weights
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "workdir", None, "Folder of the run to average.", required=True
)
flags.DEFINE_string(
    "output", None, "New folder to write the averaged run to.", required=True
)
flags.DEFINE_integer(
    "num_checkpoints", None,
    "Number of latest checkpoints to average. Default: all.", lower_bound=1,
)  # fmt: skip


def main(_):
    workdir, output = Workdir(FLAGS.workdir), Workdir(FLAGS.output)
    output.check_new("output")
    config = workdir.read_config()
    tokenizer = workdir.load_tokenizer()
    model = workdir.build_model()
    steps = average_weights(
        model, workdir.checkpoints, FLAGS.num_checkpoints, workdir.run_hash()
    )
    output.create(
        model, steps[-1], {**config, "averaged_steps": steps}, tokenizer
    )
    print(f"Mean of steps {steps} written to {output.path}")


if __name__ == "__main__":
    running.run(main)
