r"""Converts published checkpoints and runs to presets or to Hugging Face.

    txl convert --input_format=hugging_face \
        --input=transfo-xl-wt103 --vocabulary=transfo-xl-wt103/vocab.pkl \
        --output=wt103
    txl convert --input_format=tf1 --input=wt103/model.ckpt-0 \
        --config=wt103.json --vocabulary=wt103/cache.pkl --output=my_wt103
    txl convert --input_format=workdir --input=runs/mine \
        --cold_start=zeros --output_format=hugging_face --output=mine_hf
    txl convert --input_format=workdir --input=runs/mine --average \
        --output=mine_average

`from_preset` reads the output. `txl evaluate` (with --corpus), `txl generate`
and `txl export` take it as --workdir, like a run. The content of --config is
described at `txl_keras.checkpoints.load_tf1` and `load_pytorch`.
"""

import os
import re

import txl_keras.scripts.quiet  # noqa: F401

from txl_keras import checkpoints
from txl_keras.checks import shown
from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.data import load_tokenizer
from txl_keras.data.corpora.files import absolute_path
from txl_keras.json_files import read_json
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.loading import find_folder
from txl_keras.models.presets import PRESETS
from txl_keras.models.presets import TRAINED
from txl_keras.output_folders import check_new
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts.options import FLAGS
from txl_keras.training.checkpointing import average_weights
from txl_keras.workdir import Workdir


class Convert(options.Options, trained=" or ".join(TRAINED)):
    """Holds the options of this command.

    input_format: Format of the input: original TensorFlow code (tf1), Hugging
        Face, original or NVIDIA's PyTorch code (pytorch), a run of `txl train`
        (workdir), or `save_to_preset` (preset).
    input: Checkpoint to convert: a prefix (tf1), a file (pytorch) or a folder.
        A preset may also be {trained}.
    average: Average the latest checkpoints of a run instead of taking its best
        weights. Training keeps two, or --max_to_keep.
    config: JSON file with sizes and options, for the input formats tf1 and
        pytorch.
    output_format: Format of the output: a preset, or a Hugging Face folder.
    output: New folder to write.
    cold_start: Memory at the start of a text: masked, or zeros as in Hugging
        Face's code. Default: as in the input.
    symbols: Kind of symbols in --vocabulary: words; bytes as decimal numbers,
        without newlines (enwik8); or characters, with `_` for the space
        (text8).

    Model options:
    same_length: The same_length option of `CausalMultiHeadAttention`; export to
        Hugging Face needs pytorch. Default: as in the input.

    Tokenizer options:
    vocabulary: File with the symbols of the vocabulary: text, JSON or a known
        pickle; or a run's tokenizer.json, with all of its options.
    """

    input_format: options.one_of(
        ["tf1", "hugging_face", "pytorch", "workdir", "preset"]
    ) = options.REQUIRED
    input: options.path = options.REQUIRED
    average: bool = False
    config: options.path = None
    output_format: options.one_of(["preset", "hugging_face"]) = "preset"
    output: options.path = options.REQUIRED
    cold_start: options.one_of(["masked", "zeros"]) = None
    symbols: options.one_of(["words", "bytes", "characters"]) = "words"
    same_length: options.one_of(["false", "true", "pytorch"]) = None
    vocabulary: options.path = None


_WORD_FLAGS = ("unknown", "line_start", "line_end")

Convert.define()
data_flags.Tokenizer.define(*_WORD_FLAGS, unknown="<unk>", line_end="<eos>")


def main(_):
    options.check_used("output_format", {"vocabulary": ["preset"]})
    users = {"config": ["tf1", "pytorch"], "average": ["workdir"]}
    options.check_used("input_format", users)
    options.check_used("symbols", dict.fromkeys(_WORD_FLAGS, ["words"]))
    options.refuse(
        FLAGS.input_format == "tf1" and not FLAGS.config,
        "`config` must be given with --input_format=tf1.",
    )
    options.refuse(not FLAGS.output, "`output` must be given, a path.")
    check_new("output", FLAGS.output)
    # First, because it is fast, and may fail before a large model is loaded.
    tokenizer = _read_tokenizer() if FLAGS.vocabulary else None
    model, training = _load_model()
    if FLAGS.output_format == "preset":
        model.tokenizer = tokenizer or model.tokenizer
        model.save_to_preset(FLAGS.output, training)
    else:
        checkpoints.save_hugging_face(model, FLAGS.output)
    print(f"{model.count_params():,} weights written to {FLAGS.output}")


def _load_model():
    """Returns the model, and how it was trained, as far as known."""
    same_length = {"false": False, "true": True}
    overrides = {
        "cold_start": FLAGS.cold_start,
        "same_length": same_length.get(FLAGS.same_length, FLAGS.same_length),
    }
    overrides = {k: v for k, v in overrides.items() if v is not None}
    is_name = FLAGS.input_format == "preset" and FLAGS.input in TRAINED
    path = FLAGS.input if is_name else absolute_path(FLAGS.input)
    known = {"segment_length": 128, "step": 0}
    if FLAGS.input_format == "workdir":
        workdir = Workdir(FLAGS.input)
        model, step = workdir.load_model(**overrides)
        known = {**workdir.training(), "step": step}
        if FLAGS.average:
            steps = average_weights(
                model, workdir.checkpoints, workdir.run_hash()
            )
            known |= {"step": steps[-1], "averaged_steps": steps}
    elif FLAGS.input_format == "preset":
        expected = "`input` must be a preset with weights."
        options.refuse(FLAGS.input in PRESETS, expected)
        workdir = Workdir(find_folder(FLAGS.input, TransformerXLCausalLM))
        model = TransformerXLCausalLM.from_preset(workdir.path, **overrides)
        if "class_name" in read_json(workdir.file("config.json")):  # ours
            step = workdir.best_step() or 0
            known |= {**workdir.training(), "step": step}
    else:
        load = getattr(checkpoints, f"load_{FLAGS.input_format}")
        has_config = FLAGS.input_format != "hugging_face"
        config = [FLAGS.config] if has_config else []
        model = load(FLAGS.input, *config, **overrides)
    source = {"format": FLAGS.input_format, "path": path}
    return model, {**known, "source": source}


def _read_tokenizer():
    path = FLAGS.vocabulary
    if os.path.basename(path) == "tokenizer.json":
        return load_tokenizer(path)
    symbols = checkpoints.load_vocabulary(path)
    if FLAGS.symbols == "bytes":
        symbols = [_byte(symbol) for symbol in symbols]
        return CharacterTokenizer(symbols, "latin-1", drop_newlines=True)
    if FLAGS.symbols == "characters":
        return CharacterTokenizer([x.replace("_", " ") for x in symbols])
    # An empty string stands for none.
    marks = {name: FLAGS[name].value or None for name in _WORD_FLAGS}
    given = FLAGS["unknown"].present and marks["unknown"]
    expected = "`unknown` must be a word of the vocabulary."
    options.refuse(given and given not in symbols, expected)
    return WordTokenizer(symbols, **marks)


def _byte(symbol):
    if not re.fullmatch("0|[1-9][0-9]{0,2}", symbol) or int(symbol) > 255:
        raise ValueError(
            "With symbols=bytes the vocabulary must hold decimal numbers from "
            f"0 to 255. Received: {shown(symbol)}"
        )
    return chr(int(symbol))


if __name__ == "__main__":
    running.run(main)
