r"""Lets a run write.

    python train/generate.py --workdir=runs/quickstart --prompt="def main("
    python train/generate.py --workdir=runs/quickstart --num_tokens=5000 \
        --temperature=0.8 --top_p=0.95 --seed=3

The text appears as it is written.
"""

import codecs
import sys

from absl import flags

from txl_keras.scripts import running
from txl_keras.serving import Generator
from txl_keras.serving import Sampler
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"], "Best by valid, or newest."
)
flags.DEFINE_string(
    "prompt", None, "Text to go on from. Default: a new line, or a space."
)
flags.DEFINE_integer("num_tokens", 500, "How many to write.", lower_bound=0)
flags.DEFINE_float("temperature", 1.0, "0 takes the most likely (greedy).")
flags.DEFINE_integer("top_k", None, "Only the k most likely tokens.")
flags.DEFINE_float("top_p", None, "Only the likely tokens that reach p.")
flags.DEFINE_integer("seed", 0, "The same seed writes the same text.")
flags.DEFINE_integer(
    "memory_length", None,
    "Default: as in training, but at least a segment.", lower_bound=0,
)  # fmt: skip


def main(_):
    sampler = Sampler(FLAGS.temperature, FLAGS.top_k, FLAGS.top_p)
    workdir = Workdir(FLAGS.workdir)
    tokenizer = workdir.load_tokenizer()
    model, _ = workdir.load_model(FLAGS.checkpoint)
    text, prompt = _prompt(tokenizer)
    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = workdir.generation_memory_length()
    write = Generator(model, sampler, memory_length)
    # A token may be a part of a character: only whole ones are shown.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    print(text, end="", flush=True)
    for token in write(prompt[None], FLAGS.num_tokens, FLAGS.seed):
        sys.stdout.write(decoder.decode(tokenizer.decode_bytes(token)))
        sys.stdout.flush()
    print(decoder.decode(b"", final=True))


def _prompt(tokenizer):
    """The prompt as text and as ids."""
    # Of some corpora newlines are left out.
    texts = ["\n", " "] if FLAGS.prompt is None else [FLAGS.prompt]
    for text in texts:
        try:
            ids = tokenizer.encode(text)
        except ValueError:
            if text != texts[-1]:
                continue
            raise
        if len(ids):
            return text, ids
    raise ValueError(
        "`prompt` must hold at least one token of the model's vocabulary. "
        f"Received: prompt={FLAGS.prompt!r}"
    )


if __name__ == "__main__":
    running.run(main)
