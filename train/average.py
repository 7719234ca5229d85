"""Averages the newest checkpoints of a run into a run of its own.

    python train/average.py --workdir=runs/mine --output=runs/mine_average
    python train/evaluate.py --workdir=runs/mine_average

Train with --max_to_keep to have more than two.
"""

from absl import flags

from txl_keras.scripts import running
from txl_keras.training.checkpointing import average_weights
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_string("output", None, "Folder to make.", required=True)
flags.DEFINE_integer(
    "num_checkpoints", None, "How many. Default: all.", lower_bound=1
)


def main(_):
    workdir, output = Workdir(FLAGS.workdir), Workdir(FLAGS.output)
    output.check_new()
    config = workdir.read_config()
    tokenizer = workdir.load_tokenizer()
    model = workdir.build_model()
    steps = average_weights(
        model, workdir.checkpoints, FLAGS.num_checkpoints, workdir.run_hash()
    )
    output.create(
        model, steps[-1], {**config, "averaged_steps": steps}, tokenizer
    )
    print(f"The mean of steps {steps} in {output.path}")


if __name__ == "__main__":
    running.run(main)
