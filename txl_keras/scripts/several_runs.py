"""Checks of the scripts that compare several runs."""

import os

import tensorflow as tf
from absl import flags

from txl_keras.data.preparation import tokenizer_hash
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import read_json
from txl_keras.scripts import data_flags
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS


def output_path(endings, reason):
    """Returns the checked path `--output` and makes its folder."""
    output = os.path.expanduser(FLAGS.output)
    if not output.endswith(endings):
        raise ValueError(
            f"`output` must end with {' or '.join(endings)}: {reason}. "
            f"Received: --output={FLAGS.output}"
        )
    data_flags.check_writable("output", output)
    return output


def check_replaces(path, pictures):
    """Checks that a JSON file to write replaces only a file of its own kind."""
    # Protects files such as a run's config.json.
    if not tf.io.gfile.exists(path):
        return
    try:
        kind = read_json(path, max_bytes=MAX_VOCABULARY_BYTES).get("picture")
    except (OSError, ValueError):
        kind = None
    if kind not in pictures:
        raise ValueError(
            f"`output` must not replace {path}, which is not a file of "
            f"{' or '.join(pictures)}: give another name. Received: "
            f"--output={FLAGS.output}"
        )


def check_different(name, paths, kind):
    """Raises `ValueError` if two paths of a flag lead to the same place."""
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ValueError(
            f"`{name}` must be different {kind}. "
            f"Received: --{name}={','.join(paths)}"
        )


def labels(paths, may_repeat=False):
    """Returns names of runs: `--labels`, folder names, or paths."""
    # With `may_repeat` runs may share a name of `--labels`.
    received = FLAGS.labels
    if not received:
        folders = [os.path.basename(path.rstrip("/")) for path in paths]
        return folders if len(set(folders)) == len(folders) else paths
    repeats = len(set(received)) < len(received) and not may_repeat
    if len(received) != len(paths) or repeats:
        different = "" if may_repeat else "different "
        raise ValueError(
            f"`labels` must be {len(paths)} {different}names, one per run. "
            f"Received: --labels={','.join(received)}"
        )
    return received


def numbers(name, kind):
    """Parses a flag that lists one or more numbers, of type int or float."""
    texts = FLAGS[name].value
    try:
        return [kind(text) for text in texts or [""]]
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be numbers ({kind.__name__}) separated by commas. "
            f"Received: --{name}={','.join(texts)}"
        ) from error


def open_group(paths):
    """Returns the `Workdir`s, configurations and shared tokenizer of models."""
    workdirs = [Workdir(path) for path in paths]
    for workdir in workdirs:
        workdir.check_model_class()
    tokenizers = [workdir.load_tokenizer() for workdir in workdirs]
    hashes = [tokenizer_hash(tokenizer) for tokenizer in tokenizers]
    for path, received in zip(paths, hashes, strict=True):
        if received != hashes[0]:
            raise ValueError(
                "`workdirs` must be runs of one tokenizer, so that their "
                f"losses can be compared. Received: {paths[0]}, of tokenizer "
                f"{hashes[0]}, and {path}, of {received}"
            )
    configs = [workdir.read_config() for workdir in workdirs]
    return workdirs, configs, tokenizers[0]


def prepare_split(paths, configs, tokenizer):
    """Prepares `--split` of `--corpus`, or of the text that all runs share."""
    # Returns the name of the text, facts about it to write as JSON, and the
    # `PreparedSplit`.
    options = data_flags.corpus_options(configs[0]["corpus"])
    corpus, split = data_flags.prepare_split(options, tokenizer, FLAGS.split)
    if FLAGS.corpus is None:
        for path, config in zip(paths, configs, strict=True):
            data_flags.check_run_text(
                split, config["data"].get(FLAGS.split), corpus, path,
                "Bring it back, or give one text for all runs with --corpus",
            )  # fmt: skip
    text = {
        "corpus": options["corpus"],
        "fingerprint": split.fingerprint(),
        "split": FLAGS.split,
        "unit": tokenizer.unit,
    }
    return corpus.name, text, split
