r"""Converts published checkpoints to presets, and those to Hugging Face's.

    txl convert --input_format=hugging_face \
        --input=transfo-xl-wt103 --vocabulary=transfo-xl-wt103/vocab.pkl \
        --output=wt103
    txl convert --input_format=tf1 --input=wt103/model.ckpt-0 \
        --config=wt103.json --vocabulary=wt103/cache.pkl --output=my_wt103
    txl convert --input_format=workdir --input=runs/mine \
        --cold_start=zeros --output_format=hugging_face --output=mine_hf

The output is what `from_preset` reads. `txl evaluate` (with --corpus), `txl
generate` and `txl export` take it as --workdir, as a run. The content of
--config is described at `txl_keras.checkpoints.load_tf1` and `load_pytorch`.
"""

import os
import re

import txl_keras.scripts.quiet  # noqa: F401

import tensorflow as tf

from txl_keras import checkpoints
from txl_keras.checks import shown
from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.data import load_tokenizer
from txl_keras.data.corpora.files import absolute_path
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.presets import PRESETS
from txl_keras.models.presets import TRAINED
from txl_keras.output_folders import check_new
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts.options import FLAGS
from txl_keras.workdir import Workdir


class Convert(options.Options, trained=" or ".join(TRAINED)):
    """Holds the options of this command.

    input_format: What wrote the input: the original TensorFlow code (tf1),
        Hugging Face, the original or NVIDIA's PyTorch code, txl train
        (workdir), or save_to_preset.
    input: Checkpoint to convert: a prefix (tf1), a file (pytorch) or a folder.
        A preset may also be {trained}.
    config: JSON file with sizes and options, for the input formats tf1 and
        pytorch.
    output_format: Format of the output: a preset, or a Hugging Face folder.
    output: New folder to write.
    cold_start: State of the memory at the start of a text: masked out, or zeros
        as in Hugging Face's code. Default: as in the input.
    symbols: Kind of the symbols in --vocabulary: words; bytes as decimal
        numbers, without newlines (enwik8); characters with `_` for the space
        (text8).

    Data options:
    segment_length: Default number of tokens per segment for other scripts that
        load the preset. Default: as in the input run, or 128.

    Model options:
    same_length: The same_length option of `CausalMultiHeadAttention`; Hugging
        Face's code needs pytorch. Default: as in the input.

    Tokenizer options:
    vocabulary: File with the symbols of the vocabulary: text, JSON or a known
        pickle. A tokenizer.json of a run is also read, with all of its options.
    """

    input_format: options.one_of(
        ["tf1", "hugging_face", "pytorch", "workdir", "preset"]
    ) = options.REQUIRED
    input: options.path = options.REQUIRED
    config: options.path = None
    output_format: options.one_of(["preset", "hugging_face"]) = "preset"
    output: options.path = options.REQUIRED
    cold_start: options.one_of(["masked", "zeros"]) = None
    symbols: options.one_of(["words", "bytes", "characters"]) = "words"
    segment_length: options.integer(1, 1 << 20) = None
    same_length: options.one_of(["false", "true", "pytorch"]) = None
    vocabulary: options.path = None


_WORD_FLAGS = ("unknown", "line_start", "line_end")

Convert.define()
data_flags.Tokenizer.define(*_WORD_FLAGS, unknown="<unk>", line_end="<eos>")


def main(_):
    output = FLAGS.output
    _check_flags()
    check_new("output", output)
    # First, because it is fast and fails before a large model is loaded.
    tokenizer = _load_tokenizer()
    model, step = _load_model()
    if FLAGS.output_format == "preset":
        model.tokenizer = tokenizer or model.tokenizer
        model.save_to_preset(output, {**_training(), "step": step})
    else:
        checkpoints.save_hugging_face(model, output)
    print(f"{model.count_params():,} weights written to {output}")
    if tokenizer and FLAGS.output_format == "hugging_face":
        print(
            "The tokenizer is not written, as Hugging Face has another format. "
            f"To convert back, pass --vocabulary={_tokenizer_path()}"
        )


def _check_flags():
    """Checks flags that need others before anything is loaded."""
    is_preset = FLAGS.output_format == "preset"
    has_symbols = FLAGS.vocabulary and not _is_tokenizer_file()
    has_words = has_symbols and FLAGS.symbols == "words"
    has_config = FLAGS.input_format in ("tf1", "pytorch")
    for names, is_used, needed in (
        (("vocabulary", "segment_length"), is_preset, "output_format=preset"),
        (("symbols",), has_symbols, "a `vocabulary` without a tokenizer"),
        (_WORD_FLAGS, has_words, "a `vocabulary` of words"),
        (("config",), has_config, "input_format=tf1 or pytorch"),
    ):
        given = [x for x in names if FLAGS[x].present and FLAGS[x].value]
        for name in given:
            options.refuse(
                not is_used,
                f"`{name}` must be left out, unless {needed} is given: without "
                "it this flag has no effect.",
            )
    for name in ("input", "output", "config"):
        is_needed = name != "config" or FLAGS.input_format == "tf1"
        is_wrong = is_needed and not FLAGS[name].value
        options.refuse(is_wrong, f"`{name}` must be given, a path.")


def _training():
    """Returns how the model was trained, as far as it is known."""
    known = {"segment_length": 128}
    if FLAGS.input_format == "workdir":
        known = Workdir(FLAGS.input).training()
    if FLAGS.segment_length:
        known["segment_length"] = FLAGS.segment_length
    is_name = FLAGS.input_format == "preset" and FLAGS.input in TRAINED
    path = FLAGS.input if is_name else absolute_path(FLAGS.input)
    source = {"format": FLAGS.input_format, "path": path}
    return {**known, "source": source}


def _load_model():
    """Returns the model and its training step, 0 if unknown."""
    overrides = {
        "cold_start": FLAGS.cold_start,
        "same_length": {"false": False, "true": True}.get(
            FLAGS.same_length, FLAGS.same_length
        ),
    }
    overrides = {k: v for k, v in overrides.items() if v is not None}
    if FLAGS.input_format == "workdir":
        return Workdir(FLAGS.input).load_model(**overrides)
    if FLAGS.input_format == "preset":
        expected = "`input` must be a preset with weights."
        options.refuse(FLAGS.input in PRESETS, expected)
        return TransformerXLCausalLM.from_preset(FLAGS.input, **overrides), 0
    load = getattr(checkpoints, f"load_{FLAGS.input_format}")
    config = [] if FLAGS.input_format == "hugging_face" else [FLAGS.config]
    return load(FLAGS.input, *config, **overrides), 0


def _load_tokenizer():
    if not FLAGS.vocabulary:
        has_one = tf.io.gfile.exists(_tokenizer_path())
        if FLAGS.input_format == "workdir" and has_one:
            return Workdir(FLAGS.input).load_tokenizer()
        return None
    if _is_tokenizer_file():
        return load_tokenizer(FLAGS.vocabulary)
    symbols = checkpoints.load_vocabulary(FLAGS.vocabulary)
    if FLAGS.symbols == "bytes":
        return CharacterTokenizer(
            [_byte(symbol) for symbol in symbols],
            encoding="latin-1",
            drop_newlines=True,
        )
    if FLAGS.symbols == "characters":
        return CharacterTokenizer(
            [" " if symbol == "_" else symbol for symbol in symbols]
        )
    is_wrong = FLAGS["unknown"].present and FLAGS.unknown not in symbols
    expected = "`unknown` must be a word of the vocabulary."
    options.refuse(is_wrong, expected)
    given = {name: FLAGS[name].value for name in _WORD_FLAGS}
    return WordTokenizer(symbols, **given)


def _tokenizer_path():
    return os.path.join(FLAGS.input, "tokenizer.json")


def _is_tokenizer_file():
    return os.path.basename(FLAGS.vocabulary or "") == "tokenizer.json"


def _byte(symbol):
    if not re.fullmatch("0|[1-9][0-9]{0,2}", symbol) or int(symbol) > 255:
        raise ValueError(
            "With symbols=bytes the vocabulary must hold decimal numbers from "
            f"0 to 255. Received: {shown(symbol)}"
        )
    return chr(int(symbol))


if __name__ == "__main__":
    running.run(main)
