r"""Lets a run write.

    python train/generate.py --workdir=runs/quickstart --prompt="def main("
    python train/generate.py --workdir=runs/quickstart --max_tokens=5000 \
        --temperature=0.8 --top_p=0.95 --seed=3
    python train/generate.py --workdir=runs/quickstart --prompt="class A" \
        --prompt="import " --stop="\n\n"

The text of one prompt appears as it is written. Several are written side by
side, each as if it were alone, and appear one after the other.
"""

import sys

from absl import flags

from txl_keras.scripts import running
from txl_keras.serving import Generator
from txl_keras.serving import Sampler
from txl_keras.serving import TextStream
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"], "Best by valid, or newest."
)
flags.DEFINE_multi_string(
    "prompt", None,
    "Text to go on from; may be repeated. Default: a new line, or a space.",
)  # fmt: skip
flags.DEFINE_integer(
    "max_tokens", 500,
    "Most tokens to write after the prompt; --stop may end the text sooner.",
    lower_bound=0,
)  # fmt: skip
flags.DEFINE_multi_string(
    "stop", [], "Text to stop at, which is not shown; may be repeated."
)
flags.DEFINE_float("temperature", 1.0, "0 takes the most likely (greedy).")
flags.DEFINE_integer("top_k", None, "Only the k most likely tokens.")
flags.DEFINE_float("top_p", None, "Only the likely tokens that reach p.")
flags.DEFINE_float("typical_p", None, "Only typical tokens that reach p.")
flags.DEFINE_float(
    "repetition_penalty", None,
    "Log-probabilities of tokens already seen are multiplied by it.",
)  # fmt: skip
flags.DEFINE_integer(
    "seed", 0, "The same seed writes the same text.", lower_bound=0
)
flags.DEFINE_integer(
    "memory_length", None,
    "Default: as in training, but at least a segment.", lower_bound=0,
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
    streams = [
        TextStream(tokenizer.decode_bytes, FLAGS.stop)
        for _ in FLAGS.prompt or [None]
    ]
    texts, prompts = _prompts(tokenizer)
    model, _ = workdir.load_model(FLAGS.checkpoint)
    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = workdir.generation_memory_length(model.backbone)
    write = Generator(model, sampler, memory_length)
    parts = _parts(write(prompts, FLAGS.max_tokens, FLAGS.seed), streams)
    if len(texts) == 1:
        _show(texts[0])
        for (part,) in parts:
            _show(part)
        print()
        return
    written = list(texts)
    for of_rows in parts:
        written = [a + b for a, b in zip(written, of_rows, strict=True)]
    for number, text in enumerate(written):
        print(f"--- {number}\n{text}")


def _parts(tokens, streams):
    """Yields, token after token, what there is to show of each row."""
    for of_rows in tokens:
        yield [
            stream.add(token)
            for stream, token in zip(streams, of_rows, strict=True)
        ]
        if all(stream.is_stopped for stream in streams):
            return
    yield [stream.finish() for stream in streams]


def _show(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def _prompts(tokenizer):
    """The prompts as texts and as ids."""
    if FLAGS.prompt is not None:
        return FLAGS.prompt, [_encode(tokenizer, text) for text in FLAGS.prompt]
    try:
        return ["\n"], [_encode(tokenizer, "\n")]
    except ValueError:
        # Of some corpora newlines are left out.
        return [" "], [_encode(tokenizer, " ")]


def _encode(tokenizer, text):
    try:
        ids = tokenizer.encode(text)
    except ValueError as error:
        raise ValueError(
            "`prompt` must be text of the model's vocabulary. "
            f"Received: prompt={text!r}. {error}"
        ) from error
    if not len(ids):
        raise ValueError(
            "`prompt` must hold at least one token of the model's vocabulary. "
            f"Received: prompt={text!r}"
        )
    return ids


if __name__ == "__main__":
    running.run(main)
