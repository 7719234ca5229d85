"""Flags that name a trained language model, and how it is loaded."""

from absl import flags

from txl_keras.models import TransformerXLCausalLM
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS


def define_flags():
    """Defines `--workdir`, `--preset`, `--checkpoint` and `--memory_length`."""
    flags.DEFINE_string(
        "workdir", None, "Folder of a run. Either it or --preset must be given."
    )
    flags.DEFINE_string(
        "preset", None,
        "A trained model: a folder of `save_to_preset`, or hf://owner/name.",
    )  # fmt: skip
    flags.DEFINE_enum(
        "checkpoint", "best", ["best", "latest"],
        "Weights to load: those with the best validation score, or the latest.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "memory_length", None,
        "Tokens of memory. Default: as in training, but at least one segment.",
        lower_bound=0,
    )  # fmt: skip


def load():
    """Loads the model that the flags name, with its tokenizer.

    Returns the model, the memory length for generating (None: the model's own)
    and the segment length of training (None: unknown).
    """
    if (FLAGS.workdir is None) == (FLAGS.preset is None):
        raise ValueError(
            "Either `workdir` or `preset` must be given. Received: "
            f"--workdir={FLAGS.workdir}, --preset={FLAGS.preset}"
        )
    if FLAGS.preset is not None:
        return _load_preset(), FLAGS.memory_length, None
    workdir = Workdir(FLAGS.workdir)
    tokenizer = workdir.load_tokenizer()
    model, _ = workdir.load_model(FLAGS.checkpoint)
    model.tokenizer = tokenizer
    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = workdir.generation_memory_length(model.backbone)
    segment_length = workdir.read_config()["flags"].get("segment_length")
    return model, memory_length, segment_length


def _load_preset():
    if FLAGS["checkpoint"].present:
        raise ValueError(
            "`checkpoint` must be left out with `preset`, which has one set of "
            f"weights. Received: --checkpoint={FLAGS.checkpoint}"
        )
    model = TransformerXLCausalLM.from_preset(FLAGS.preset)
    if model.tokenizer is None:
        raise ValueError(
            f"`preset` must have a tokenizer. Received: --preset={FLAGS.preset}"
        )
    return model
