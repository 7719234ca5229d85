r"""Writes text with the model of a run or of a preset.

    txl generate --preset=my_model --prompt="def main("
    txl generate --workdir=runs/quickstart --prompt="def main("
    txl generate --workdir=runs/quickstart --max_tokens=5000 \
        --temperature=0.8 --top_p=0.95 --seed=3
    txl generate --workdir=runs/quickstart --prompt="class A" \
        --prompt="import " --stop="\n\n"
    txl generate --workdir=runs/music --prompt="60 64 67" --output=tune.npy

The text after a single prompt is printed token by token. Several prompts are
continued in one batch, each independently of the others, and printed at the
end.

A model of token ids (--tokenizer=ids) continues numbers, or the ids in an .npy
file. --output writes ids to a file that can be used as --corpus.
"""

import contextlib
import functools
import io
import itertools
import os
import sys

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.data import IdTokenizer
from txl_keras.data.corpora.id_files import is_id_file
from txl_keras.data.corpora.id_files import open_ids
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.extending import registered
from txl_keras.samplers import Sampler
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts.options import FLAGS

_ENGINES = registered("engine")
_ENGINE_OPTIONS = {
    name: engine.options for name, engine in _ENGINES.items() if engine.options
}


class Generate(options.Options):
    r"""Holds the options of this command.

    prompt: Text to continue; may be repeated. Default: a newline, or a space if
        the vocabulary has no newline. A model of token ids requires it:
        numbers, or an .npy file.
    max_tokens: Most tokens to write after the prompt; --stop may end the text
        sooner.
    stop: Text at which to stop; \n is a newline. It is not printed. May be
        repeated.
    output: File to write prompts and continuations to, for a model of token
        ids: .npy, or .npz, which also stores where each begins. Default: none.
    temperature: Softmax temperature of sampling; 0 always takes the most likely
        token.
    top_k: Sample from the k most likely tokens only. Default: no limit.
    top_p: Sample from the most likely tokens whose probabilities add up to p
        (nucleus sampling). Default: no limit.
    repetition_penalty: Factor for the log-probabilities of tokens that occurred
        before; above 1 makes repetition less likely. Default: 1.
    engine: Implementation that decodes token by token: TensorFlow, or the
        engine of an extension.

    Optimization options:
    seed: Seed of sampling; the same seed writes the same text.
    """

    prompt: flags.DEFINE_multi_string = None
    max_tokens: options.integer(0) = 500
    stop: flags.DEFINE_multi_string = []
    output: options.path = None
    temperature: float = 1.0
    top_k: int = None
    top_p: float = None
    repetition_penalty: float = None
    engine: options.one_of(["tensorflow", *_ENGINES]) = "tensorflow"
    seed: options.integer(0) = 0


for extra in (Generate, *_ENGINE_OPTIONS.values()):
    extra.define()
trained_model.TrainedModel.define()
trained_model.define_memory_flag()


def main(_):
    for engine, extra in _ENGINE_OPTIONS.items():
        options.check_used("engine", dict.fromkeys(extra.names(), (engine,)))
    engine_options = _ENGINE_OPTIONS.get(FLAGS.engine, options.Options).values()
    sampler = Sampler(
        FLAGS.temperature, FLAGS.top_k, FLAGS.top_p, FLAGS.repetition_penalty
    )
    model, memory_length, _ = trained_model.load_trained_model()
    is_text = not isinstance(model.tokenizer, IdTokenizer)
    _check_kind(is_text)
    prompts = FLAGS.prompt or [_first_prompt(model.tokenizer)]
    if not is_text:
        # Numbers, or paths of files of ids.
        prompts = [
            model.tokenizer.encode(
                open_ids(os.path.expanduser(x))[0] if is_id_file(x) else x
            )
            for x in prompts
        ]
    generate = functools.partial(
        model.generate,
        max_new_tokens=FLAGS.max_tokens,
        stop=[stop.replace(r"\n", "\n") for stop in FLAGS.stop],
        sampler=sampler,
        seed=FLAGS.seed,
        memory_length=memory_length,
        engine=FLAGS.engine,
        **engine_options,
    )
    if is_text and len(prompts) == 1:
        parts = generate(prompts[0], stream=True)
        for part in itertools.chain(prompts, parts):
            print(part, end="", flush=True)
        print()
        return
    rows = generate(prompts)
    for number, row in enumerate(rows):
        if len(rows) > 1:
            print(f"--- {number}")
        print(row if is_text else model.tokenizer.decode(row))
    if FLAGS.output is not None:
        _write(rows)


def _first_prompt(tokenizer):
    """Returns a newline, or a space if the vocabulary has no newline."""
    for text in ("\n", " "):
        with contextlib.suppress(UnknownSymbolError):
            if len(tokenizer.encode(text)):
                return text
    raise ValueError(
        "`prompt` must be given: the vocabulary has neither newline nor space."
    )


def _check_kind(is_text):
    """Checks the flags that only suit models of text or of token ids."""
    options.refuse(
        is_text and FLAGS.output is not None,
        "`output` can only be given for a model of token ids: text is printed.",
    )
    options.refuse(
        not is_text and (not FLAGS.prompt or FLAGS.stop),
        "`prompt` must be given for a model of token ids, and `stop` must not: "
        "it is text.",
    )
    if FLAGS.output is not None:
        data_flags.check_writable("output", FLAGS.output)
    options.refuse(
        not (FLAGS.output or ".npy").endswith((".npy", ".npz")),
        "`output` must end with .npy or .npz.",
    )


def _write(rows):
    """Writes token ids to `--output`."""
    ids = np.concatenate(rows).astype(np.int32)
    with tf.io.gfile.GFile(FLAGS.output, "wb") as file:
        if FLAGS.output.endswith(".npy"):
            np.save(file, ids)
        else:
            starts = np.cumsum([0, *map(len, rows[:-1])])
            buffer = io.BytesIO()  # since np.savez cannot write to a bucket
            np.savez(buffer, tokens=ids, documents=starts)
            file.write(buffer.getvalue())
    print(f"Written to {FLAGS.output}", file=sys.stderr)


if __name__ == "__main__":
    running.run(main, prints_result=True)
