r"""Writes text with the model of a run.

    python train/generate.py --workdir=runs/quickstart --prompt="def main("
    python train/generate.py --workdir=runs/quickstart --max_tokens=5000 \
        --temperature=0.8 --top_p=0.95 --seed=3
    python train/generate.py --workdir=runs/quickstart --prompt="class A" \
        --prompt="import " --stop="\n\n"

The text of a single prompt is printed token by token. Several prompts are
continued in one batch, each independently of the others, and their texts are
printed at the end.
"""

import functools
import itertools

from absl import flags

from txl_keras.samplers import Sampler
from txl_keras.scripts import running
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"],
    "Weights to load: those with the best validation score, or the latest.",
)  # fmt: skip
flags.DEFINE_multi_string(
    "prompt", None,
    "Text to continue; may be repeated. Default: a newline, or a space if the "
    "vocabulary lacks the newline.",
)  # fmt: skip
flags.DEFINE_integer(
    "max_tokens", 500,
    "Most tokens to write after the prompt; --stop may end the text sooner.",
    lower_bound=0,
)  # fmt: skip
flags.DEFINE_multi_string(
    "stop", [],
    "Text at which to stop; it is not printed. May be repeated.",
)  # fmt: skip
flags.DEFINE_float(
    "temperature", 1.0,
    "Softmax temperature of sampling; 0 always takes the most likely token.",
)  # fmt: skip
flags.DEFINE_integer(
    "top_k", None,
    "Sample from the k most likely tokens only. Default: no limit.",
)  # fmt: skip
flags.DEFINE_float(
    "top_p", None,
    "Sample from the most likely tokens whose probabilities add up to p "
    "(nucleus sampling). Default: no limit.",
)  # fmt: skip
flags.DEFINE_float(
    "typical_p", None,
    "Sample from the most typical tokens whose probabilities add up to p "
    "(locally typical sampling). Default: no limit.",
)  # fmt: skip
flags.DEFINE_float(
    "repetition_penalty", None,
    "Factor for the log-probabilities of tokens that occurred before; above 1 "
    "makes repetition less likely. Default: 1.",
)  # fmt: skip
flags.DEFINE_integer(
    "seed", 0, "Seed of sampling; the same seed writes the same text.",
    lower_bound=0,
)  # fmt: skip
flags.DEFINE_integer(
    "memory_length", None,
    "Tokens of memory. Default: as in training, but at least one segment.",
    lower_bound=0,
)  # fmt: skip


def main(_):
    sampler = Sampler(
        FLAGS.temperature,
        FLAGS.top_k,
        FLAGS.top_p,
        FLAGS.typical_p,
        FLAGS.repetition_penalty,
    )
    workdir = Workdir(FLAGS.workdir)
    tokenizer = workdir.load_tokenizer()
    prompts = FLAGS.prompt or [_first_prompt(tokenizer)]
    model, _ = workdir.load_model(FLAGS.checkpoint)
    model.tokenizer = tokenizer
    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = workdir.generation_memory_length(model.backbone)
    generate = functools.partial(
        model.generate,
        max_new_tokens=FLAGS.max_tokens,
        stop=FLAGS.stop,
        sampler=sampler,
        seed=FLAGS.seed,
        memory_length=memory_length,
    )
    if len(prompts) == 1:
        parts = generate(prompts[0], stream=True)
        for part in itertools.chain(prompts, parts):
            print(part, end="", flush=True)
        print()
        return
    for number, text in enumerate(generate(prompts)):
        print(f"--- {number}\n{text}")


def _first_prompt(tokenizer):
    """Returns a newline, or a space if the vocabulary lacks the newline."""
    try:
        tokenizer.encode("\n")
        return "\n"
    except ValueError:
        return " "


if __name__ == "__main__":
    running.run(main)
