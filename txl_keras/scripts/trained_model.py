"""Flags that name a trained model, and the functions that load it."""

import tensorflow as tf

from txl_keras.json_files import read_json
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.loading import find_folder
from txl_keras.models.loading import load_folder
from txl_keras.models.presets import PRESETS
from txl_keras.models.presets import TRAINED
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS
from txl_keras.serving import export
from txl_keras.workdir import Workdir


class TrainedModel(options.Options, trained=", ".join(TRAINED)):
    """Holds options that name a trained model.

    workdir: Folder of the run.

    Model options:
    preset: Trained model to use instead of a --workdir: {trained}, a folder of
        `save_to_preset`, or hf://owner/name.
    """

    workdir: str = None
    preset: str = None


class OriginOption(options.Options, free=(), trained=", ".join(TRAINED)):
    """Holds the option that `Origin` reads.

    Optimization options:
    initialize_from: Trained model to start from; gives weights, sizes and
        tokenizer. The workdir of another run, {trained}, a folder of
        `save_to_preset`, or hf://owner/name. Default: random weights.
    """

    initialize_from: str = None


def define_memory_flag():
    """Defines `--memory_length` for generating."""
    note = " Default: as in training, but at least one segment."
    model_flags.Model.define("memory_length", note=note)


def given_workdir():
    """Returns the `Workdir` of `--workdir`, or `None` for a `--preset`."""
    options.refuse(
        (FLAGS.workdir is None) == (FLAGS.preset is None),
        "Either `workdir` or `preset` must be given.",
    )
    return None if FLAGS.workdir is None else Workdir(FLAGS.workdir)


def load(workdir, **overrides):
    """Loads the model of a `Workdir`, or of `--preset` if it is `None`."""
    # Also returns a dictionary that identifies the weights.
    if workdir is None:
        model = TransformerXLCausalLM.from_preset(FLAGS.preset, **overrides)
        expected = (
            "`preset` must have a tokenizer. A published size has none, and "
            "new weights: pass --workdir to use a run that trained it."
        )
        options.refuse(model.tokenizer is None, expected)
        return model, {"preset": FLAGS.preset}
    model, step = workdir.load_model(workdir.load_tokenizer(), **overrides)
    return model, {"step": step}


def load_trained_model():
    """Loads the model that the flags name, with its tokenizer."""
    # Also returns the memory length for generating (`None`: the model's own)
    # and the segment length of training (`None`: unknown).
    workdir, memory_length = given_workdir(), FLAGS.memory_length
    model, _ = load(workdir)
    if workdir is None:
        return model, memory_length, None
    if memory_length is None:
        memory_length = workdir.generation_memory_length(model.backbone)
    return (
        model,
        memory_length,
        workdir.read_config()["flags"].get("segment_length"),
    )


def export_run(
    workdir, model, step, path=None, kind="export", write=export, **values
):
    """Writes the model of a run, by default to WORKDIR/KIND/STEP."""
    path = path or workdir.file(f"{kind}/{step}")
    if values.get("memory_length") is None:
        # The length that `txl generate` takes; 0 with absolute positions.
        memory_length = workdir.generation_memory_length(model.backbone)
        values["memory_length"] = memory_length * model.backbone.remembers
    names = "config.json", "tokenizer.json"
    assets = {name: workdir.file(name) for name in names}
    if not tf.io.gfile.exists(workdir.tokenizer):
        del assets["tokenizer.json"]
    write(model, path, settings={"step": step}, assets=assets, **values)
    return path


def given_origin():
    """Returns the `Origin` of `--initialize_from`, or `None` without it."""
    return None if FLAGS.initialize_from is None else Origin()


class Origin:
    """Loads the model of `--initialize_from`, and the flags of its run."""

    def __init__(self):
        name = FLAGS.initialize_from
        for flag in ("preset", "backbone", *data_flags.Tokenizer.names()):
            options.refuse(
                FLAGS[flag].present,
                f"`{flag}` cannot be given with `initialize_from`, because the "
                "trained model determines it.",
            )
        options.refuse(
            name in PRESETS,
            "`initialize_from` must be a trained model. Sizes without weights "
            f"are given as --preset={name}.",
        )
        try:
            self._folder = find_folder(name, TransformerXLCausalLM)
            with tf.device("CPU:0"):
                self.tokenizer = self.load().tokenizer
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(
                "`initialize_from` must be the folder of a language model. "
                f"Received: {name} ({error})"
            ) from error
        expected = "`initialize_from` must have a tokenizer."
        options.refuse(self.tokenizer is None, expected)
        self.flags, step = {}, None
        workdir = Workdir(self._folder)
        if "class_name" in read_json(workdir.file("config.json")):  # ours
            self.flags = workdir.read_config()["flags"]
            step = workdir.best_step()
        at = f", step {step}" if step else ""
        self.description = f"Starts from the best weights of {name}{at}"

    def load(self, load_weights=True, dtype=None, **overrides):
        """Loads the language model, with compatible `overrides`."""
        return load_folder(
            TransformerXLCausalLM, self._folder, load_weights, dtype, overrides
        )
