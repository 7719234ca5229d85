"""Flags that name several runs, and the function that opens them."""

import dataclasses
import os

from txl_keras.checks import check_integer
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS
from txl_keras.workdir import Workdir


class Group(options.Options):
    """Holds options that name several runs, and what to read of their text.

    workdirs: Folders of the runs to compare.
    labels: Names of the runs in the picture, in their order; in learning_curves
        runs of one name are seeds. Default: their folders.
    context_lengths: Two or more context lengths to compare, in tokens; at equal
        intervals for effective context lengths.
    num_positions: Number of tokens to predict from each context length.

    Data options:
    split: Split of the text to read.
    segment_length: Tokens per segment. Default: as in training.
    batch_size: Rows per batch.
    """

    workdirs: list = None
    labels: list = None
    context_lengths: list = options.REQUIRED
    num_positions: options.integer(1) = 1000
    split: options.one_of(SPLITS) = "test"
    segment_length: options.integer(1) = None
    batch_size: options.integer(1) = 16


def define_group_flags(context_lengths, **defaults):
    """Defines the flags that name several runs and the text to read."""
    Group.define(context_lengths=list(map(str, context_lengths)), **defaults)
    data_flags.Corpus.define()  # by default the text of the runs


def output_path(endings):
    """Returns the path `--output`, after making its folder."""
    expected = f"`output` must end with {' or '.join(endings)}."
    options.refuse(not FLAGS.output.endswith(endings), expected)
    data_flags.check_writable("output", FLAGS.output)
    return FLAGS.output


def check_equal(name, kind, facts):
    """Raises `ValueError` unless the runs or files of a flag share a fact."""
    facts = [*facts]
    if len(set(facts)) > 1:
        received = map("{} of {}".format, FLAGS[name].value, facts)
        raise ValueError(
            f"`{name}` must have one {kind}, so that their losses can be "
            f"compared. Received: {', '.join(received)}"
        )


def labels():
    """Returns names of runs: `--labels`, folder names, or paths."""
    paths = FLAGS.workdirs
    folders = [os.path.basename(path.rstrip("/")) for path in paths]
    found = FLAGS.labels or folders
    options.refuse(
        len(found) != len(paths), f"`labels` must be {len(paths)}, one per run."
    )
    is_clear = FLAGS.labels or len(set(found)) == len(found)
    return found if is_clear else paths


@dataclasses.dataclass
class Run:
    """Holds a model and the facts about it to write as JSON."""

    model: object
    facts: dict
    sizes: tuple  # segment length and memory length
    reset_documents: bool


def open_group():
    """Opens the runs and prepares `--split` of `--corpus` or of their text."""
    # Returns the `Run`s, their tokenizer, the name of the text, facts about it
    # to write as JSON, and the `PreparedSplit`.
    names, workdirs = labels(), [Workdir(path) for path in FLAGS.workdirs]
    tokenizers = [workdir.load_tokenizer() for workdir in workdirs]
    check_equal("workdirs", "tokenizer", map(tokenizer_hash, tokenizers))
    configs = [workdir.read_config() for workdir in workdirs]
    source = data_flags.corpus_options(configs[0]["corpus"])
    corpus, split = data_flags.prepare_split(source, tokenizers[0], FLAGS.split)
    # Open all runs first, so that errors come before any long computation.
    runs = []
    for label, workdir, config in zip(names, workdirs, configs, strict=True):
        if FLAGS.corpus is None:
            data_flags.check_run_text(
                split, config["data"].get(FLAGS.split), corpus, workdir.path,
                "Bring it back, or give one text for all runs with --corpus",
            )  # fmt: skip
        model, step = workdir.load_model(tokenizers[0], **model_flags.given())
        length = FLAGS.segment_length or config["flags"].get("segment_length")
        check_integer("segment_length", length, 1)
        model.backbone.check_positions(length)
        memory = model.backbone.memory_length
        facts = {
            "label": label,
            "workdir": workdir.path,
            "step": step,
            "segment_length": length,
            "memory_length": memory,
        }
        resets = config["flags"].get("reset_documents", False)
        runs.append(Run(model, facts, (length, memory), resets))
    text = {
        "corpus": source["corpus"],
        "fingerprint": split.fingerprint(),
        "split": FLAGS.split,
        "unit": tokenizers[0].unit,
    }
    return runs, tokenizers[0], corpus.name, text, split
