"""What scripts share that hold several runs against each other."""

import os

import tensorflow as tf
from absl import flags

from txl_keras.data.preparation import prepare
from txl_keras.data.preparation import token_folder
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import read_json
from txl_keras.scripts import data_flags
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS


def output_path(endings, reason):
    """Checks that `--output` can be written, and makes its folder.

    Args:
        endings: Tuple of strings, one of which it must have.
        reason: String, for the error.

    Returns:
        String, the path.

    Raises:
        ValueError: If it has another ending, or cannot be written.
    """
    output = os.path.expanduser(FLAGS.output)
    if not output.endswith(endings):
        raise ValueError(
            f"`output` must end with {' or '.join(endings)}: {reason}. "
            f"Received: --output={FLAGS.output}"
        )
    data_flags.check_writable("output", output)
    return output


def check_replaces(path, pictures):
    """Checks that a JSON file to write replaces none but those of its kind.

    Args:
        path: String.
        pictures: List of strings, which `picture` the old file may be of.

    Raises:
        ValueError: If another file is there, such as `config.json` of a run.
    """
    if not tf.io.gfile.exists(path):
        return
    try:
        kind = read_json(path, max_bytes=MAX_VOCABULARY_BYTES).get("picture")
    except (OSError, ValueError):
        kind = None
    if kind not in pictures:
        raise ValueError(
            f"`output` must not replace {path}, which holds no numbers of "
            f"{' or '.join(pictures)}: give another name. Received: "
            f"--output={FLAGS.output}"
        )


def labels(paths):
    """Names of the runs: `--labels`, or the folders, or else their paths.

    Args:
        paths: List of strings, the workdirs.

    Returns:
        List of strings, all different.

    Raises:
        ValueError: If there are fewer or more `--labels`, or one comes twice,
            or a run does.
    """
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ValueError(
            "`workdirs` must be different runs, none of them twice. "
            f"Received: --workdirs={','.join(paths)}"
        )
    received = FLAGS.labels
    if not received:
        folders = [os.path.basename(path.rstrip("/")) for path in paths]
        return folders if len(set(folders)) == len(folders) else paths
    if len(received) != len(paths) or len(set(received)) < len(received):
        raise ValueError(
            f"`labels` must be as many as the runs, {len(paths)}, and all "
            f"different. Received: --labels={','.join(received)}"
        )
    return received


def numbers(name, kind):
    """Parses a flag that is a list of numbers.

    Args:
        name: String.
        kind: `int` or `float`.

    Returns:
        List, of one number or more.

    Raises:
        ValueError: If there is none, or one is no such number.
    """
    texts = FLAGS[name].value
    try:
        return [kind(text) for text in texts or [""]]
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be numbers ({kind.__name__}) with commas between "
            f"them. Received: --{name}={','.join(texts)}"
        ) from error


def open_group(paths):
    """Runs whose losses are of the same tokens.

    Args:
        paths: List of strings, their workdirs.

    Returns:
        Triple of the `Workdir`s, their configurations, and the tokenizer.

    Raises:
        ValueError: If they have not the same tokenizer, or one is not of a
            language model.
    """
    workdirs = [Workdir(path) for path in paths]
    for workdir in workdirs:
        workdir.check_model_class()
    tokenizers = [workdir.load_tokenizer() for workdir in workdirs]
    hashes = [tokenizer_hash(tokenizer) for tokenizer in tokenizers]
    for path, received in zip(paths, hashes, strict=True):
        if received != hashes[0]:
            raise ValueError(
                "`workdirs` must be runs of one tokenizer, or their losses "
                f"are of other tokens. Received: {paths[0]}, of tokenizer "
                f"{hashes[0]}, and {path}, of {received}"
            )
    configs = [workdir.read_config() for workdir in workdirs]
    return workdirs, configs, tokenizers[0]


def prepare_split(paths, configs, tokenizer):
    """The `--split` of the text that all runs are of, or of `--corpus`.

    Args:
        paths: List of strings, the workdirs.
        configs: Their configurations.
        tokenizer: Their tokenizer.

    Returns:
        Triple of the name of the text, what JSON shall say of it, and the
        `PreparedSplit`.

    Raises:
        ValueError: If no corpus is given, and the runs have none, or not the
            same, or it was changed.
    """
    options = data_flags.corpus_options(configs[0]["corpus"])
    if options["corpus"] is None:
        raise ValueError(
            "`corpus` must be given: the first model was not trained here. "
            "Received: --corpus=None"
        )
    corpus = data_flags.load_corpus(options)
    folder = token_folder(options["data_dir"])
    split = prepare(corpus, tokenizer, folder, [FLAGS.split])[FLAGS.split]
    fingerprint = split.fingerprint()
    for path, config in zip(paths, configs, strict=True):
        expected = config["data"].get(FLAGS.split)
        if FLAGS.corpus is None and expected != fingerprint:
            raise ValueError(
                "`corpus` must be given where the runs are not all of one "
                f"text, as it was when they began. Expected by {path}: "
                f"{expected}. Received: {fingerprint}, of {options['corpus']}"
            )
    text = {
        "corpus": options["corpus"],
        "fingerprint": fingerprint,
        "split": FLAGS.split,
        "unit": tokenizer.unit,
    }
    return corpus.name, text, split
