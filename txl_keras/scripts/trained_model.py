"""Flags that name a trained model, and the function that loads it."""

from absl import flags

from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.presets import TRAINED
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS


def define_trained_model_flags():
    """Defines `--workdir`, `--preset` and `--checkpoint`."""
    flags.DEFINE_string(
        "workdir", None, "Folder of a run. Either it or --preset must be given."
    )
    names = [*TRAINED, "a folder of `save_to_preset`"]
    flags.DEFINE_string(
        "preset", None,
        f"A trained model: {', '.join(names)}, or hf://owner/name.",
    )  # fmt: skip
    flags.DEFINE_enum(
        "checkpoint", "best", ["best", "latest"],
        "Weights to load from --workdir: those with the best validation score, "
        "or the latest.",
    )  # fmt: skip


def define_memory_flag():
    """Defines `--memory_length` for generating."""
    flags.DEFINE_integer(
        "memory_length", None,
        "Tokens of memory. Default: as in training, but at least one segment.",
        lower_bound=0,
    )  # fmt: skip


def given_workdir():
    """Returns the `Workdir` of `--workdir`, or `None` for a `--preset`."""
    if (FLAGS.workdir is None) == (FLAGS.preset is None):
        raise ValueError(
            "Either `workdir` or `preset` must be given. Received: "
            f"--workdir={FLAGS.workdir}, --preset={FLAGS.preset}"
        )
    if FLAGS.preset is not None and FLAGS["checkpoint"].present:
        raise ValueError(
            "`checkpoint` must be left out with `preset`, which has one set of "
            f"weights. Received: --checkpoint={FLAGS.checkpoint}"
        )
    return None if FLAGS.workdir is None else Workdir(FLAGS.workdir)


def load_trained_model():
    """Loads the model that the flags name, with its tokenizer."""
    # Also returns the memory length for generating (`None`: the model's own),
    # and the segment length of training (`None`: unknown).
    workdir = given_workdir()
    if workdir is None:
        return load_given_preset(), FLAGS.memory_length, None
    tokenizer = workdir.load_tokenizer()
    model, _ = workdir.load_model(FLAGS.checkpoint)
    model.tokenizer = tokenizer
    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = workdir.generation_memory_length(model.backbone)
    segment_length = workdir.read_config()["flags"].get("segment_length")
    return model, memory_length, segment_length


def load_given_preset(**overrides):
    """Returns the model of `--preset`, with its tokenizer."""
    model = TransformerXLCausalLM.from_preset(FLAGS.preset, **overrides)
    if model.tokenizer is None:
        raise ValueError(
            f"`preset` must have a tokenizer. Received: --preset={FLAGS.preset}"
        )
    return model
