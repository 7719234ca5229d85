"""Checks of the scripts that compare several runs."""

import dataclasses
import os

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import read_json
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import trained_model
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
    trained_model.TrainedModel.define("checkpoint")
    data_flags.Corpus.define()  # by default the text of the runs


def output_path(endings, reason):
    """Returns the checked path `--output` and makes its folder."""
    expected = f"`output` must end with {' or '.join(endings)}: {reason}."
    options.refuse(not FLAGS.output.endswith(endings), expected)
    data_flags.check_writable("output", FLAGS.output)
    return FLAGS.output


def check_replaces(path, pictures):
    """Checks that a JSON file to write replaces only a file of its own kind."""
    # Protects files such as a run's config.json.
    if not tf.io.gfile.exists(path):
        return
    try:
        kind = read_json(path, max_bytes=MAX_VOCABULARY_BYTES).get("picture")
    except (OSError, ValueError):
        kind = None
    options.refuse(
        kind not in pictures,
        f"`output` must not replace {path}, which is not a file of "
        f"{' or '.join(pictures)}: give another name.",
    )


def check_different(name, paths, kind):
    """Raises `ValueError` if two paths of a flag lead to the same place."""
    are_alike = len({os.path.realpath(path) for path in paths}) < len(paths)
    options.refuse(are_alike, f"`{name}` must be different {kind}.")


def check_equal(name, kind, facts):
    """Raises `ValueError` unless the runs or files of a flag share a fact."""
    facts = [*facts]
    if len(set(facts)) > 1:
        received = map("{} of {}".format, FLAGS[name].value, facts)
        raise ValueError(
            f"`{name}` must have one {kind}, so that their losses can be "
            f"compared. Received: {', '.join(received)}"
        )


def labels(may_repeat=False):
    """Returns names of runs: `--labels`, folder names, or paths."""
    # With `may_repeat` runs may share a name of `--labels`.
    received, paths = FLAGS.labels, FLAGS.workdirs
    check_different("workdirs", paths, "runs")
    if not received:
        folders = [os.path.basename(path.rstrip("/")) for path in paths]
        return folders if len(set(folders)) == len(folders) else paths
    repeats = len(set(received)) < len(received) and not may_repeat
    different = "" if may_repeat else "different "
    options.refuse(
        len(received) != len(paths) or repeats,
        f"`labels` must be {len(paths)} {different}names, one per run.",
    )
    return received


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
    for workdir in workdirs:
        workdir.check_model_class()
    tokenizers = [workdir.load_tokenizer() for workdir in workdirs]
    check_equal("workdirs", "tokenizer", map(tokenizer_hash, tokenizers))
    configs = [workdir.read_config() for workdir in workdirs]
    name, text, split = _prepare_split(configs, tokenizers[0])
    # Open all runs first, so that errors come before any long computation.
    runs = []
    for label, workdir, config in zip(names, workdirs, configs, strict=True):
        model, step = workdir.load_model(
            FLAGS.checkpoint, tokenizers[0], **model_flags.given()
        )
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
    return runs, tokenizers[0], name, text, split


def _prepare_split(configs, tokenizer):
    source = data_flags.corpus_options(configs[0]["corpus"])
    corpus, split = data_flags.prepare_split(source, tokenizer, FLAGS.split)
    if FLAGS.corpus is None:
        for path, config in zip(FLAGS.workdirs, configs, strict=True):
            data_flags.check_run_text(
                split, config["data"].get(FLAGS.split), corpus, path,
                "Bring it back, or give one text for all runs with --corpus",
            )  # fmt: skip
    text = {
        "corpus": source["corpus"],
        "fingerprint": split.fingerprint(),
        "split": FLAGS.split,
        "unit": tokenizer.unit,
    }
    return corpus.name, text, split
