"""Lets a run write.

    python train/generate.py --workdir=runs/quickstart --prompt="def main("
    python train/generate.py --workdir=runs/quickstart --num_tokens=5000 \
        --temperature=0.8 --top_p=0.95 --seed=3

The text appears as it is written.
"""

import codecs
import sys

from absl import flags

from txl_keras import script
from txl_keras.serving import Generator
from txl_keras.serving import Sampler
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_string("prompt", "\n", "Text to go on from.")
flags.DEFINE_integer("num_tokens", 500, "How many to write.", lower_bound=0)
flags.DEFINE_float("temperature", 1.0, "0 takes the most likely (greedy).")
flags.DEFINE_integer("top_k", None, "Only the k most likely tokens.")
flags.DEFINE_float("top_p", None, "Only the likely tokens that reach p.")
flags.DEFINE_integer("seed", 0, "The same seed writes the same text.")
flags.DEFINE_integer(
    "memory_length", None, "Default: as in training.", lower_bound=0
)


def main(_):
    sampler = Sampler(FLAGS.temperature, FLAGS.top_k, FLAGS.top_p)
    model, tokenizer, _ = Workdir(FLAGS.workdir).load_model()
    prompt = tokenizer.encode(FLAGS.prompt)
    if not len(prompt):
        raise ValueError(
            "`prompt` must hold at least one token of the model's vocabulary. "
            f"Received: prompt={FLAGS.prompt!r}"
        )
    write = Generator(model, sampler, FLAGS.memory_length)
    # A token may be a part of a character: only whole ones are shown.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    print(FLAGS.prompt, end="", flush=True)
    for token in write(prompt[None], FLAGS.num_tokens, FLAGS.seed):
        sys.stdout.write(decoder.decode(tokenizer.decode_bytes(token)))
        sys.stdout.flush()
    print(decoder.decode(b"", final=True))


if __name__ == "__main__":
    script.run(main)
