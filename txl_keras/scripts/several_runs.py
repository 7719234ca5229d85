"""Flags that name several runs, and the function that opens them."""

import os

from txl_keras.checks import check_integer
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.evaluation.context_losses import context_losses
from txl_keras.evaluation.context_losses import spread_positions
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS
from txl_keras.training.progress import progress_bar
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


def open_group():
    """Opens the runs and prepares `--split` of `--corpus` or of their text."""
    # Returns pairs of a model and facts about it to write as JSON, facts about
    # the text, and the `PreparedSplit`. All runs are opened first, so that
    # errors come before any long computation.
    names, workdirs = labels(), [Workdir(path) for path in FLAGS.workdirs]
    configs = [workdir.read_config() for workdir in workdirs]
    hashes = [config["tokenizer"] for config in configs]
    check_equal("workdirs", "tokenizer", hashes)
    tokenizer = workdirs[0].load_tokenizer()
    source = data_flags.corpus_options(configs[0]["corpus"])
    corpus, split = data_flags.prepare_split(source, tokenizer, FLAGS.split)
    runs = []
    for label, workdir, config in zip(names, workdirs, configs, strict=True):
        if FLAGS.corpus is None:
            data_flags.check_run_text(
                split, config["data"].get(FLAGS.split), corpus, workdir.path,
                "Bring it back, or give one text for all runs with --corpus",
            )  # fmt: skip
        model, step = workdir.load_model(tokenizer, **model_flags.given())
        length = FLAGS.segment_length or config["flags"].get("segment_length")
        check_integer("segment_length", length, 1)
        model.backbone.check_positions(length)
        facts = {
            "label": label,
            "workdir": workdir.path,
            "step": step,
            "segment_length": length,
            "memory_length": model.backbone.memory_length,
            "reset_documents": config["flags"].get("reset_documents", False),
        }
        runs.append((model, facts))
    text = {
        "corpus": source["corpus"],
        "fingerprint": split.fingerprint(),
        "split": FLAGS.split,
        "unit": tokenizer.unit,
        "num_positions": FLAGS.num_positions,
    }
    return runs, text, split


def measure_losses(model, facts, tokens, lengths, out=None, save=None):
    """Measures the losses of `context_losses` of a run, and shows a bar."""
    # Calls `save` each time that all positions are measured with one length.
    positions = spread_positions(len(tokens), FLAGS.num_positions, max(lengths))
    total = len(lengths) * len(positions)
    with progress_bar(total, "reading", facts["label"]) as show:

        def on_progress(done, _):
            show(done)
            if save and done % len(positions) == 0:
                save()

        return context_losses(
            model,
            tokens,
            positions,
            lengths,
            facts["segment_length"],
            facts["memory_length"],
            FLAGS.batch_size,
            on_progress,
            out,
        )
