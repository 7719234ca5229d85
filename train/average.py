"""Averages the latest checkpoints of a run into a new run.

    txl average --workdir=runs/mine --output=runs/mine_average
    txl evaluate --workdir=runs/mine_average

Training keeps the latest two checkpoints; --max_to_keep makes it keep more.
"""

import txl_keras.scripts.quiet  # noqa: F401

from absl import flags

from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.training.bundles import average_weights
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS


class Average(options.Options):
    """Holds the options of this command.

    workdir: Folder of the run to average.
    output: New folder to write the averaged run to.
    num_checkpoints: Number of latest checkpoints to average. Default: all.
    """

    workdir: str = options.REQUIRED
    output: str = options.REQUIRED
    num_checkpoints: options.integer(1) = None


Average.define()


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
