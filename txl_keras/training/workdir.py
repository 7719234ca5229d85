"""The folder of a run, local or in a bucket.

config.json       what the run is: flags, model, data
tokenizer.json    text <-> ids
checkpoints/      the newest states
best/             the weights with the best score of valid
events/           what TensorBoard shows
metrics.jsonl     one JSON object a line, steps rising
sample.txt        what the model writes
results.json      written last: the run is finished
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import sys
import uuid

import tensorflow as tf
from absl import logging

from txl_keras.checks import check_vocabulary
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import write_text
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.tokenizers import load_tokenizer
from txl_keras.data.tokenizers import save_tokenizer
from txl_keras.json_files import check_fields
from txl_keras.json_files import open_checked
from txl_keras.json_files import parse_json
from txl_keras.json_files import read_json
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM
from txl_keras.training.checkpointing import DamagedCheckpointError
from txl_keras.training.checkpointing import check_saved_shapes
from txl_keras.training.checkpointing import restore_weights
from txl_keras.training.checkpointing import save_weights
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.model_config import MAX_LENGTH
from txl_keras.training.model_config import check_limit
from txl_keras.training.model_config import check_model_config
from txl_keras.training.model_config import weight_shapes

_CONFIG_FIELDS = {
    "flags": "an object",
    "flags.segment_length": "an integer or null",
    "flags.batch_size": "an integer or null",
    "flags.learning_rate": "a number or null",
    "flags.reset_documents": "a boolean or null",
    "model": "an object",
    "tokenizer": "a string or null",
    "corpus": "an object or null",
    "corpus.corpus": "a string or null",
    "corpus.data_dir": "a string or null",
    "corpus.manual_dir": "a string or null",
    "corpus.document_separator": "a string or null",
    "corpus.text_key": "a string or null",
    "data": "an object",
}
CHECKPOINTS = ("latest", "best")
# Of a line some 300 are written, and dictionaries take four times that.
_MAX_METRICS_BYTES = 64 << 20
_MAX_METRICS_LINE = 1 << 16
_TRAINING_FIELDS = {
    "step": "an integer",
    "loss": "a number or null",
    "bits_per_token": "a number or null",
}
_VALID_FIELDS = {
    "step": "an integer",
    "valid": "an object",
    "valid.nll": "a number",
}
_RESULTS_FIELDS = {
    "step": "an integer",
    **{
        f"{split}{field}": kind
        for split in ("valid", "test")
        for field, kind in {
            "": "an object",
            ".nll": "a number",
            ".bits_per_byte": "a number or null",
            ".compressors": "an object or null",
        }.items()
    },
}


class Workdir:
    """Reads and writes the files of a run.

    Args:
        path: String. Created where it is absent.

    Raises:
        ValueError: If the path is empty.
    """

    def __init__(self, path):
        if not path:
            # Joined with names of files it would be the present folder.
            raise ValueError(
                "The path of a run's folder must not be empty; `.` is the "
                f"present folder. Received: {path!r}"
            )
        path = os.path.expanduser(path)
        self.path = path
        self.tokenizer = os.path.join(path, "tokenizer.json")
        self.checkpoints = os.path.join(path, "checkpoints")
        self.best = os.path.join(path, "best")
        self.metrics = os.path.join(path, "metrics.jsonl")
        self.events = os.path.join(path, "events")

    def file(self, name):
        """Path of a file of the run."""
        return os.path.join(self.path, name)

    def check_writable(self):
        """Sees that files can be written here, and leaves none.

        Raises:
            OSError: If they cannot.
        """
        path = self.file(f"{uuid.uuid4().hex}.tmp")
        try:
            is_new = not tf.io.gfile.exists(self.path)
            tf.io.gfile.makedirs(self.path)
            write_text("", path)
            tf.io.gfile.remove(path)
            if is_new and not tf.io.gfile.listdir(self.path):
                tf.io.gfile.rmtree(self.path)
        except tf.errors.OpError as error:
            raise OSError(
                "The folder of a run must be one that can be written to. "
                f"Received: {self.path} ({error.message})"
            ) from error

    def check_has_config(self):
        """Raises `ValueError` if there is a run here that lost config.json."""
        names = ("checkpoints", "best", "metrics.jsonl", "results.json")
        left = [n for n in names if tf.io.gfile.exists(self.file(n))]
        if left and not self.is_claimed():
            raise ValueError(
                f"`workdir` {self.path} has {', '.join(left)} of a run, but no "
                "config.json, without which nobody can tell whether the flags "
                "are still those of the run. Bring that file back (a copy is "
                "in export/STEP/assets of a finished run), or give another "
                "--workdir."
            )

    def claim(self, config, tokenizer=None):
        """Starts a run of this configuration here, or goes on with it.

        A tokenizer.json that was removed is written again.

        Args:
            config: Dictionary that JSON can hold. Its entry `corpus` says
                where the text lies; that may change, as long as the hashes of
                the text stay.
            tokenizer: Optional tokenizer of the run.

        Raises:
            ValueError: If a run of another configuration lives here, or files
                of a run without one, or a tokenizer.json of another run.
            OSError: If another process trains here.
        """
        tf.io.gfile.makedirs(self.path)
        self._lock()
        self.check_has_config()
        is_new = not self.is_claimed()
        if not is_new:
            # The hash of the tokenizer is part of it.
            self.check_config(config)
        if tokenizer and (is_new or not tf.io.gfile.exists(self.tokenizer)):
            save_tokenizer(tokenizer, self.tokenizer)
        if is_new:
            # Last: without it the folder is no run.
            write_json(config, self.file("config.json"))
        elif tokenizer:
            self.load_tokenizer()

    def check_config(self, config):
        """Raises `ValueError` if the run here is of another configuration.

        Args:
            config: As in `claim`.
        """
        differences = _differences(
            {**self.read_config(), "corpus": None},
            {**_as_json(config), "corpus": None},
        )
        if differences:
            raise ValueError(
                f"`workdir` {self.path} holds a run of another configuration. "
                "Give another --workdir, or the same settings: "
                + "; ".join(_described(differences))
            )

    def _lock(self):
        """Keeps other processes of this machine out while this one lives."""
        if is_remote(self.path):
            return
        # Kept open: a lock is lost with its file.
        self._lock_file = open(self.file("lock"), "w")  # noqa: SIM115
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(
                f"`workdir` {self.path} is in use: another process trains "
                "there. Wait for its end, or stop it."
            ) from error

    def is_claimed(self):
        """Whether a run was started here."""
        return tf.io.gfile.exists(self.file("config.json"))

    def read_config(self):
        """The configuration of the run.

        Raises:
            FileNotFoundError: If no run was started here.
            ValueError: If the file is damaged.
        """
        path = self.file("config.json")
        if not self.is_claimed():
            raise FileNotFoundError(
                f"`workdir` must be that of a run: there is no {path}."
            )
        config = read_json(path)
        check_fields(config, _CONFIG_FIELDS, path)
        length = config["flags"].get("segment_length") or 0
        check_limit("flags.segment_length", length, MAX_LENGTH, path)
        return config

    def run_hash(self):
        """64-bit integer that tells this run from those of other settings.

        The place of the text is left out, as it may change.

        Raises:
            FileNotFoundError, ValueError: As `read_config`.
        """
        config = {**self.read_config(), "corpus": None}
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        return int.from_bytes(digest.digest()[:8], "big", signed=True)

    def load_model(
        self,
        checkpoint="latest",
        model_class=TransformerXLCausalLM,
        **overrides,
    ):
        """The model of the run, with its weights.

        Args:
            checkpoint: String, `"latest"` or `"best"` by the score of valid.
                What was not trained here has but one.
            model_class: The class of the model, such as `XLNetPermutationLM`.
            **overrides: Arguments of the backbone that do not change the
                weights, such as `memory_length`.

        Returns:
            The pair of model and step.

        Raises:
            FileNotFoundError: If there is no run or no checkpoint.
            ValueError: If `checkpoint` is neither, the run is one of another
                class, or its configuration and its weights contradict each
                other.
        """
        model = self.build_model(model_class, checkpoint, **overrides)
        return model, self.restore_weights(model, checkpoint)

    def restore_weights(self, model, checkpoint="latest"):
        """Gives a model of the run its weights.

        Args:
            model: `TransformerXLCausalLM`.
            checkpoint: As in `load_model`.

        Returns:
            Integer, the step they are of.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If none can be read, or they are of another model.
        """
        run = self.run_hash()
        if checkpoint == "best" and saved_steps(self.best):
            try:
                return restore_weights(model, self.best, run)
            except DamagedCheckpointError as error:
                logging.error("%s The newest weights are taken.", error)
        return restore_weights(model, self.checkpoints, run)

    def build_model(
        self,
        model_class=TransformerXLCausalLM,
        checkpoint="latest",
        **overrides,
    ):
        """The model of the run, with fresh weights: see `load_model`."""
        config = self.read_model_config(model_class, checkpoint)
        config["backbone"]["config"].update(overrides)
        return model_class.from_config(config)

    def read_model_config(
        self, model_class=TransformerXLCausalLM, checkpoint="latest"
    ):
        """`get_config()` of the model of the run, compared with its weights.

        Args:
            model_class: The class that it must be of.
            checkpoint: As in `load_model`.

        Raises:
            FileNotFoundError: If there is no run or no checkpoint.
            ValueError: If it is of another class, or the weights are of
                another model: nothing is allocated to find out.
        """
        if checkpoint not in CHECKPOINTS:
            raise ValueError(
                f"`checkpoint` must be one of {CHECKPOINTS}. "
                f"Received: checkpoint={checkpoint!r}"
            )
        self.check_model_class(model_class)
        path = self.file("config.json")
        config = check_model_config(self.read_config(), model_class, path)
        shapes = functools.partial(weight_shapes, config, model_class, path)
        if checkpoint == "best" and saved_steps(self.best):
            try:
                check_saved_shapes(self.best, shapes)
                return config
            except DamagedCheckpointError:
                pass  # `restore_weights` takes the newest, too
        check_saved_shapes(self.checkpoints, shapes)
        return config

    def check_model_class(self, model_class=TransformerXLCausalLM):
        """Raises `ValueError` if the model of the run is of another class.

        Args:
            model_class: The class that it must be of.
        """
        received = self.model_class_name()
        if received != model_class.__name__:
            raise ValueError(
                f"`workdir` must be that of a {model_class.__name__}. "
                f"Received: {self.path}, of class {received}"
            )

    def model_class_name(self):
        """String, the class of the model of the run."""
        config = self.read_config()
        if "num_classes" in config["model"]:
            return "TransformerXLTextClassifier"
        kinds = {
            "model.backbone": "an object",
            "model.backbone.class_name": "a string",
        }
        check_fields(config, kinds, self.file("config.json"))
        if config["model"]["backbone"]["class_name"] == "XLNetBackbone":
            return "XLNetPermutationLM"
        return "TransformerXLCausalLM"

    def load_tokenizer(self):
        """The tokenizer of the run.

        Raises:
            FileNotFoundError: If there is none, as where a checkpoint was
                converted without a vocabulary.
            ValueError: If it is damaged, or not the one that the run began
                with.
        """
        config = self.read_config()
        if not tf.io.gfile.exists(self.tokenizer):
            remedy = "convert the checkpoint again, with --vocabulary"
            if config.get("tokenizer"):  # of a run that was trained here
                remedy = (
                    "train/main.py writes it again when the run goes on, or "
                    "bring back a copy, as in export/STEP/assets"
                )
            raise FileNotFoundError(f"There is no {self.tokenizer}: {remedy}.")
        tokenizer = load_tokenizer(self.tokenizer)
        received = tokenizer_hash(tokenizer)
        if config.get("tokenizer", received) != received:
            raise ValueError(
                f"{self.tokenizer} is not that of the run: it was changed "
                f"after the run began. Expected: {config['tokenizer']}. "
                f"Received: {received}"
            )
        return tokenizer

    def create(self, model, step, config, tokenizer=None):
        """Makes the folder of weights that no training here has written.

        Args:
            model: `TransformerXLCausalLM`.
            step: Integer, how long it was trained; 0 where nobody knows.
            config: Dictionary that JSON can hold, besides the model's own:
                where the weights are from and, where they are known, `corpus`,
                `data` and `flags`, as other scripts read them.
            tokenizer: Optional tokenizer.

        Raises:
            FileExistsError: If there is something in the folder.
            OSError: If it cannot be written.
            ValueError: If the tokenizer is not that of the model.
        """
        self.check_new()
        if tokenizer:
            check_vocabulary(tokenizer, model.backbone.vocabulary_size)
        tf.io.gfile.makedirs(self.path)
        save_weights(model, self.checkpoints, step)
        if tokenizer:
            save_tokenizer(tokenizer, self.tokenizer)
        # Last: without it the folder is no run.
        write_json(
            {
                "flags": {},
                "corpus": {},
                "data": {},
                **config,
                "model": model.get_config(),
            },
            self.file("config.json"),
        )

    def check_new(self):
        """Checks that `create` can write here.

        Raises:
            FileExistsError: If there is something in the folder.
            OSError: If it cannot be written.
        """
        gfile = tf.io.gfile
        if gfile.isdir(self.path) and gfile.listdir(self.path):
            raise FileExistsError(
                "The folder to write must be new or empty. "
                f"Received: {self.path}"
            )
        self.check_writable()

    def generation_memory_length(self, backbone):
        """How far back a model that writes token by token should remember.

        In training a token saw its segment too, not memory alone: a model
        without memory would write from the last token only.

        Args:
            backbone: That of the run's model.
        """
        if not backbone.has_attention:
            return backbone.memory_length
        segment_length = self.read_config()["flags"].get("segment_length")
        return max(backbone.memory_length, segment_length or 0)

    def is_finished(self):
        """Whether results were written."""
        return tf.io.gfile.exists(self.file("results.json"))

    def write_results(self, results):
        """Writes results.json: the run is finished.

        Args:
            results: Dictionary that JSON can hold.
        """
        write_json(results, self.file("results.json"))

    def read_results(self):
        """What `write_results` wrote.

        Raises:
            ValueError: If the file is damaged. Once it is removed, the command
                that trained scores again.
        """
        path = self.file("results.json")
        results = read_json(path)
        check_fields(results, _RESULTS_FIELDS, path)
        return results

    def write_sample(self, text):
        """Writes sample.txt.

        Args:
            text: String.
        """
        write_text(text, self.file("sample.txt"))

    def read_sample(self):
        """What `write_sample` wrote."""
        with tf.io.gfile.GFile(self.file("sample.txt")) as file:
            return file.read()

    def append_metrics(self, metrics):
        """Adds a line to metrics.jsonl.

        Args:
            metrics: Dictionary with `step`.
        """
        with tf.io.gfile.GFile(self.metrics, "a") as file:
            file.write(json.dumps(metrics) + "\n")

    def drop_metrics_after(self, step):
        """Forgets lines that a resumed run will write again.

        Args:
            step: Integer, the step that the run goes on from.
        """
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        lines = "".join(json.dumps(line) + "\n" for line in kept)
        write_text(lines, self.metrics)

    def read_metrics(self):
        """List of the dictionaries in metrics.jsonl.

        Raises:
            ValueError: If a line is no JSON or not what the training loop
                writes.
        """
        if not tf.io.gfile.exists(self.metrics):
            return []
        metrics = []
        with open_checked(self.metrics, _MAX_METRICS_BYTES) as file:
            for number, line in enumerate(iter(file.readline, b""), 1):
                if not line.endswith(b"\n"):
                    # Of a run that was killed.
                    break
                source = f"Line {number} of {self.metrics}"
                metrics.append(_parse_metrics(line, source))
        return metrics


def _parse_metrics(line, source):
    """Returns a line of metrics.jsonl as a dictionary."""
    if len(line) > _MAX_METRICS_LINE:
        raise ValueError(
            f"{source} must have at most {_MAX_METRICS_LINE:,} bytes. "
            f"Received: {len(line):,}"
        )
    metrics = parse_json(line, source)
    fields = _VALID_FIELDS if "valid" in metrics else _TRAINING_FIELDS
    check_fields(metrics, fields, source)
    # One string a name, not one a line.
    return {sys.intern(name): value for name, value in metrics.items()}


def write_json(content, path):
    """Writes a JSON file, whole or not at all."""
    write_text(json.dumps(content, indent=1) + "\n", path)


def _as_json(content):
    """What `content` is after a round trip: tuples are lists, and so on."""
    return json.loads(json.dumps(content))


def _differences(old, new, prefix=""):
    """What was and is now, by the path of each field that differs."""
    found = {}
    for key in sorted(old.keys() | new.keys()):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            found |= _differences(before, now, f"{prefix}{key}.")
        elif before != now:
            found[f"{prefix}{key}"] = before, now
    return found


def _described(differences):
    """Yields flags first, as causes, and last the text, without its hashes."""
    hashes = {p for p in differences if re.match("data[.]|tokenizer$", p)}
    paths = differences.keys() - hashes
    for path in sorted(paths, key=lambda p: (not p.startswith("flags."), p)):
        before, now = differences[path]
        yield f"{path} was {before!r}, now {now!r}"
    if hashes:
        names = sorted({".".join(path.split(".")[:2]) for path in hashes})
        yield (
            "the text or its tokens are others than those of the run "
            f"({', '.join(names)})"
        )
