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
import json
import os
import uuid

import tensorflow as tf
from absl import logging

from txl_keras.checks import check_vocabulary
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import write_text
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.tokenizers import load_tokenizer
from txl_keras.data.tokenizers import save_tokenizer
from txl_keras.models.lstm_backbone import LSTMBackbone
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM
from txl_keras.training.checkpointing import DamagedCheckpointError
from txl_keras.training.checkpointing import restore_weights
from txl_keras.training.checkpointing import save_weights
from txl_keras.training.checkpointing import saved_steps


class Workdir:
    """Reads and writes the files of a run.

    Args:
        path: String. Created where it is absent.
    """

    def __init__(self, path):
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
                f"`workdir` must be a folder that can be written to. "
                f"Received: {self.path} ({error.message})"
            ) from error

    def claim(self, config, tokenizer=None):
        """Starts a run of this configuration here, or goes on with it.

        Args:
            config: Dictionary that JSON can hold. Its entry `corpus` says
                where the text lies; that may change, as long as the hashes of
                the text stay.
            tokenizer: Optional tokenizer of the run.

        Raises:
            ValueError: If a run of another configuration lives here.
            OSError: If another process trains here.
        """
        tf.io.gfile.makedirs(self.path)
        self._lock()
        if not self.is_claimed():
            if tokenizer:
                save_tokenizer(tokenizer, self.tokenizer)
            # Last: without it the folder is no run.
            write_json(config, self.file("config.json"))
        self.check_config(config)

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
                + "; ".join(differences)
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
        missing = {"corpus", "flags", "model", "data"} - set(config)
        if missing:
            raise ValueError(f"{path} is damaged: it lacks {sorted(missing)}.")
        return config

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
            ValueError: If the run is one of another class.
        """
        model = self.build_model(model_class, **overrides)
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
        if checkpoint == "best" and saved_steps(self.best):
            try:
                return restore_weights(model, self.best)
            except DamagedCheckpointError as error:
                logging.error("%s The newest weights are taken.", error)
        return restore_weights(model, self.checkpoints)

    def build_model(self, model_class=TransformerXLCausalLM, **overrides):
        """The model of the run, with fresh weights: see `load_model`."""
        config = self.read_model_config(model_class)
        config["backbone"]["config"].update(overrides)
        return model_class.from_config(config)

    def read_model_config(self, model_class=TransformerXLCausalLM):
        """`get_config()` of the model of the run.

        Args:
            model_class: The class that it must be of.

        Raises:
            FileNotFoundError: If there is no run.
            ValueError: If it is of another class.
        """
        received = self.model_class_name()
        if received != model_class.__name__:
            raise ValueError(
                f"`workdir` must be that of a {model_class.__name__}. "
                f"Received: {self.path}, of class {received}"
            )
        return self.read_config()["model"]

    def model_class_name(self):
        """String, the class of the model of the run."""
        config = self.read_config()["model"]
        if "num_classes" in config:
            return "TransformerXLTextClassifier"
        if config["backbone"]["class_name"] == "XLNetBackbone":
            return "XLNetPermutationLM"
        return "TransformerXLCausalLM"

    def load_tokenizer(self):
        """The tokenizer of the run.

        Raises:
            FileNotFoundError: If there is none, as where a checkpoint was
                converted without a vocabulary.
            ValueError: If it is not the one that the run began with.
        """
        config = self.read_config()
        if not tf.io.gfile.exists(self.tokenizer):
            raise FileNotFoundError(
                f"There is no {self.tokenizer}: convert the checkpoint again, "
                "with --vocabulary."
            )
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
            ValueError: If the tokenizer is not that of the model.
        """
        gfile = tf.io.gfile
        if gfile.isdir(self.path) and gfile.listdir(self.path):
            raise FileExistsError(
                "The folder to write must be new or empty. "
                f"Received: {self.path}"
            )
        if tokenizer:
            check_vocabulary(tokenizer, model.backbone.vocabulary_size)
        gfile.makedirs(self.path)
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

    def generation_memory_length(self, backbone):
        """How far back a model that writes token by token should remember.

        In training a token saw its segment too, not memory alone: a model
        without memory would write from the last token only.

        Args:
            backbone: That of the run's model.
        """
        if isinstance(backbone, LSTMBackbone):
            return backbone.memory_length
        segment_length = self.read_config()["flags"].get("segment_length", 0)
        return max(backbone.memory_length, segment_length)

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
        """What `write_results` wrote."""
        return read_json(self.file("results.json"))

    def write_sample(self, text):
        """Writes sample.txt.

        Args:
            text: String.
        """
        write_text(text, self.file("sample.txt"))

    def read_sample(self):
        """What `write_sample` wrote."""
        return _read_text(self.file("sample.txt"))

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
        """List of the dictionaries in metrics.jsonl."""
        if not tf.io.gfile.exists(self.metrics):
            return []
        lines = _read_text(self.metrics).splitlines(keepends=True)
        # A run that was killed may leave half a line at the end.
        lines = [line for line in lines if line.endswith("\n")]
        return [
            _parse_json(line, f"{self.metrics}, line {number},")
            for number, line in enumerate(lines, 1)
        ]


def read_json(path):
    """Reads a JSON file."""
    return _parse_json(_read_text(path), path)


def _parse_json(text, path):
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def write_json(content, path):
    """Writes a JSON file, whole or not at all."""
    write_text(json.dumps(content, indent=1) + "\n", path)


def _read_text(path):
    with tf.io.gfile.GFile(path) as file:
        return file.read()


def _as_json(content):
    """What `content` is after a round trip: tuples are lists, and so on."""
    return json.loads(json.dumps(content))


def _differences(old, new, prefix=""):
    lines = []
    for key in sorted(old.keys() | new.keys()):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            lines += _differences(before, now, f"{prefix}{key}.")
        elif before != now:
            lines.append(f"{prefix}{key} was {before!r}, now {now!r}")
    return lines
