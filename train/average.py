"""Averages the checkpoints of a run into a preset.

    txl average --workdir=runs/mine --output=mine_average
    txl evaluate --workdir=mine_average

Training keeps the latest two checkpoints; --max_to_keep makes it keep more.
"""

import txl_keras.scripts.quiet  # noqa: F401

from txl_keras.checks import check_path
from txl_keras.output_folders import check_new
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts.options import FLAGS
from txl_keras.training.checkpointing import average_weights
from txl_keras.workdir import Workdir


class Average(options.Options):
    """Holds the options of this command.

    workdir: Folder of the run to average.
    output: New folder to write the preset to.
    """

    workdir: str = options.REQUIRED
    output: str = options.REQUIRED


Average.define()


def main(_):
    workdir, output = Workdir(FLAGS.workdir), check_path("output", FLAGS.output)
    check_new("output", output)
    tokenizer = workdir.load_tokenizer()
    model, _ = workdir.load_model(tokenizer)
    steps = average_weights(model, workdir.checkpoints, workdir.run_hash())
    training = {**workdir.training(), "step": steps[-1]}
    model.save_to_preset(output, {**training, "averaged_steps": steps})
    print(f"Mean of steps {steps} written to {output}")


if __name__ == "__main__":
    running.run(main)
