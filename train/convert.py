r"""Turns published checkpoints into runs, and runs into Hugging Face folders.

    python train/convert.py --input_format=hugging_face \
        --input=transfo-xl-wt103 --vocabulary=transfo-xl-wt103/vocab.pkl \
        --output=runs/wt103
    python train/convert.py --input_format=tf1 --input=wt103/model.ckpt-0 \
        --config=wt103.json --vocabulary=wt103/cache.pkl --output=runs/wt103
    python train/convert.py --input_format=workdir --input=runs/mine \
        --cold_start=zeros --output_format=hugging_face --output=mine_hf

`train/evaluate.py` (with --corpus), `train/generate.py` and `train/export.py`
take such a run as they take one that was trained here. What a configuration
holds is said at `txl_keras.checkpoints.load_tf1` and `load_pytorch`.
"""

import os

from absl import flags

from txl_keras import script
from txl_keras.checkpoints import load_hugging_face
from txl_keras.checkpoints import load_pytorch
from txl_keras.checkpoints import load_tf1
from txl_keras.checkpoints import load_vocabulary
from txl_keras.checkpoints import save_hugging_face
from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "input_format", None, ["tf1", "hugging_face", "pytorch", "workdir"],
    "Who wrote the input: the original TensorFlow code, Hugging Face, the "
    "original or NVIDIA's PyTorch code, or a run of ours.", required=True,
)  # fmt: skip
flags.DEFINE_string(
    "input", None, "Prefix (tf1), file (pytorch) or folder.", required=True
)
flags.DEFINE_string(
    "config", None, "JSON file of sizes and options, of tf1 and pytorch."
)
flags.DEFINE_enum(
    "output_format", "workdir", ["workdir", "hugging_face"], "What to write."
)
flags.DEFINE_string("output", None, "New folder to write.", required=True)
flags.DEFINE_integer(
    "segment_length", 128, "Tokens that other scripts read at a time.",
    lower_bound=1,
)  # fmt: skip

flags.DEFINE_enum(
    "cold_start", None, ["masked", "zeros"],
    "How memory begins; Hugging Face's begins as zeros. Default: the input's.",
)  # fmt: skip
flags.DEFINE_enum(
    "same_length", None, ["false", "true", "pytorch"],
    "See `CausalMultiHeadAttention`; Hugging Face has `pytorch`. Default: the "
    "input's.",
)  # fmt: skip

flags.DEFINE_string(
    "vocabulary", None, "File of the symbols: text, JSON or a known pickle."
)
flags.DEFINE_enum(
    "symbols", "words", ["words", "bytes", "characters"],
    "What they are: words; bytes as numbers, newlines left out (enwik8); "
    "characters, the space as `_` (text8).",
)  # fmt: skip
flags.DEFINE_string("unknown", "<unk>", "Word for words unknown.")
flags.DEFINE_string("line_start", None, "Word before a line.")
flags.DEFINE_string("line_end", "<eos>", "Word after a line.")
flags.DEFINE_bool("lower_case", False, "Read text in lower case.")


def main(_):
    if os.path.exists(FLAGS.output) and os.listdir(FLAGS.output):
        raise ValueError(
            "`output` must be a new or empty folder. "
            f"Received: output={FLAGS.output}"
        )
    model, step = _load_model()
    if FLAGS.output_format == "hugging_face":
        save_hugging_face(model, FLAGS.output)
    else:
        source = {
            "format": FLAGS.input_format,
            "path": os.path.abspath(FLAGS.input),
        }
        config = {
            "source": source,
            "flags": {"segment_length": FLAGS.segment_length},
        }
        Workdir(FLAGS.output).create(model, step, config, _load_tokenizer())
    print(f"{model.count_params():,} weights in {FLAGS.output}")


def _load_model():
    """The model and the step that it was trained to, 0 where nobody knows."""
    needs_config = FLAGS.input_format in ("tf1", "pytorch")
    if FLAGS.config and not needs_config:
        raise ValueError(
            f"`config` must be left out: input_format={FLAGS.input_format} "
            f"has its own. Received: config={FLAGS.config}"
        )
    overrides = _overrides()
    if FLAGS.input_format == "workdir":
        return Workdir(FLAGS.input).load_model(**overrides)
    if FLAGS.input_format == "hugging_face":
        return load_hugging_face(FLAGS.input, **overrides), 0
    if FLAGS.input_format == "pytorch":
        return load_pytorch(FLAGS.input, FLAGS.config, **overrides), 0
    if not FLAGS.config:
        raise ValueError("`config` must be given with input_format=tf1.")
    return load_tf1(FLAGS.input, FLAGS.config, **overrides), 0


def _overrides():
    overrides = {}
    if FLAGS.cold_start:
        overrides["cold_start"] = FLAGS.cold_start
    if FLAGS.same_length:
        values = {"false": False, "true": True, "pytorch": "pytorch"}
        overrides["same_length"] = values[FLAGS.same_length]
    return overrides


def _load_tokenizer():
    if FLAGS.input_format == "workdir":
        return Workdir(FLAGS.input).load_tokenizer()
    if not FLAGS.vocabulary:
        return None
    symbols = load_vocabulary(FLAGS.vocabulary)
    if FLAGS.symbols == "bytes":
        return CharacterTokenizer(
            [chr(int(symbol)) for symbol in symbols],
            encoding="latin-1",
            drop_newlines=True,
        )
    if FLAGS.symbols == "characters":
        return CharacterTokenizer(
            [" " if symbol == "_" else symbol for symbol in symbols]
        )
    return WordTokenizer(
        symbols,
        unknown=FLAGS.unknown,
        line_start=FLAGS.line_start,
        line_end=FLAGS.line_end,
        lower_case=FLAGS.lower_case,
    )


if __name__ == "__main__":
    script.run(main)
