"""Reading the folder of a run: its configuration, weights and tokenizer."""

import functools
import hashlib
import json
import os

import tensorflow as tf
from absl import logging

from txl_keras.checks import check_one_of
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.tokenizers import load_tokenizer
from txl_keras.json_files import check_fields
from txl_keras.json_files import read_json
from txl_keras.models.model_config import MAX_LENGTH
from txl_keras.models.model_config import check_limit
from txl_keras.models.model_config import check_model_config
from txl_keras.models.model_config import warn_of_memory_source
from txl_keras.models.model_config import weight_shapes
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM
from txl_keras.training.bundles import DamagedCheckpointError
from txl_keras.training.bundles import check_saved_shapes
from txl_keras.training.bundles import restore_weights
from txl_keras.training.bundles import saved_steps

_CONFIG_FIELDS = {
    "flags": "an object",
    "flags.segment_length": "an integer or null",
    "flags.batch_size": "an integer or null",
    "flags.learning_rate": "a number or null",
    "flags.max_steps": "an integer or null",
    "flags.minutes": "a number or null",
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
# "best" is by validation score, and the latest if there is none.
CHECKPOINTS = ("latest", "best")


class RunFolder:
    """Reads from the folder of a run what its model needs."""

    def __init__(self, path):
        if not path:
            # Joined with file names, it would be the current folder.
            raise ValueError(
                "The path of a run's folder must not be empty; `.` is the "
                f"current folder. Received: {path!r}"
            )
        path = os.path.expanduser(path)
        self.path = path
        self.tokenizer = os.path.join(path, "tokenizer.json")
        self.checkpoints = os.path.join(path, "checkpoints")
        self.best = os.path.join(path, "best")
        self.metrics = os.path.join(path, "metrics.jsonl")
        self.events = os.path.join(path, "events")

    def file(self, name):
        """Returns the path of a file of the run."""
        return os.path.join(self.path, name)

    def is_claimed(self):
        """Returns whether a run was started here."""
        return tf.io.gfile.exists(self.file("config.json"))

    def read_config(self):
        """Returns the configuration of the run, a dictionary."""
        path = self.file("config.json")
        if not self.is_claimed():
            raise FileNotFoundError(
                f"`workdir` must be that of a run: there is no {path}."
            )
        config = read_json(path)
        check_fields(config, _CONFIG_FIELDS, path)
        length = config["flags"].get("segment_length") or 0
        check_limit("flags.segment_length", length, MAX_LENGTH, path)
        return {**config, "corpus": config.get("corpus") or {}}

    def run_hash(self):
        """Returns a 64-bit integer that identifies the run's configuration."""
        # Without the location of the text, which may change.
        config = {**self.read_config(), "corpus": None}
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        return int.from_bytes(digest.digest()[:8], "big", signed=True)

    def load_model(
        self,
        checkpoint="latest",
        model_class=TransformerXLCausalLM,
        **overrides,
    ):
        """Returns the run's model with its weights, and their step."""
        model = self.build_model(model_class, checkpoint, **overrides)
        return model, self.restore_weights(model, checkpoint)

    def restore_weights(self, model, checkpoint="latest"):
        """Loads the weights of the run into a model and returns their step."""
        run = self.run_hash()
        return self._read_weights(
            checkpoint, lambda folder: restore_weights(model, folder, run), True
        )

    def _read_weights(self, checkpoint, read, reports_damage=False):
        """Returns `read(folder)` of the best weights, or of the newest."""
        if checkpoint == "best" and saved_steps(self.best):
            try:
                return read(self.best)
            except DamagedCheckpointError as error:
                if reports_damage:
                    logging.error("%s The newest weights are taken.", error)
        return read(self.checkpoints)

    def build_model(
        self,
        model_class=TransformerXLCausalLM,
        checkpoint="latest",
        **overrides,
    ):
        """Builds the run's model; `overrides` are arguments of its backbone."""
        config = self.read_model_config(model_class, checkpoint)
        warn_of_memory_source(config["backbone"]["config"], overrides)
        config["backbone"]["config"].update(overrides)
        return model_class.from_config(config)

    def read_model_config(
        self, model_class=TransformerXLCausalLM, checkpoint="latest"
    ):
        """Returns `get_config()` of the run's model, if the weights match."""
        check_one_of("checkpoint", checkpoint, CHECKPOINTS)
        self.check_model_class(model_class)
        path = self.file("config.json")
        config = check_model_config(self.read_config(), model_class, path)
        shapes = functools.partial(weight_shapes, config, model_class, path)
        self._read_weights(
            checkpoint, lambda folder: check_saved_shapes(folder, shapes)
        )
        return config

    def check_model_class(self, model_class=TransformerXLCausalLM):
        """Raises `ValueError` if the run has a model of another class."""
        received = self.model_class_name()
        if received != model_class.__name__:
            raise ValueError(
                f"`workdir` must be that of a {model_class.__name__}. "
                f"Received: {self.path}, of class {received}"
            )

    def model_class_name(self):
        """Returns the class name of the run's model, a string."""
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
        """Loads the tokenizer of the run, unless it has changed since."""
        config = self.read_config()
        if not tf.io.gfile.exists(self.tokenizer):
            remedy = "convert the checkpoint again, with --vocabulary"
            # Runs of `Workdir.create` name their source; others are trained.
            if config.get("tokenizer") and "source" not in config:
                remedy = (
                    "`txl train` writes it again when the run goes on, or "
                    "bring back a copy, as in export/STEP/assets"
                )
            raise FileNotFoundError(f"There is no {self.tokenizer}: {remedy}.")
        tokenizer = load_tokenizer(self.tokenizer)
        received = tokenizer_hash(tokenizer)
        if (config.get("tokenizer") or received) != received:
            raise ValueError(
                f"{self.tokenizer} is not that of the run: it was changed "
                f"after the run began. Expected: {config['tokenizer']}. "
                f"Received: {received}"
            )
        return tokenizer

    def generation_memory_length(self, backbone):
        """Returns the memory length for generating token by token."""
        if not backbone.has_attention:
            return backbone.memory_length
        # In training a token also attended to its segment. Without memory it
        # would now attend to the last token only.
        segment_length = self.read_config()["flags"].get("segment_length")
        return max(backbone.memory_length, segment_length or 0)
