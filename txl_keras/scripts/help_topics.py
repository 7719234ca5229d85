"""Groups the flags of a script by topic in its `--help`."""

import sys

from absl import app
from absl import flags

from txl_keras.scripts import model_flags
from txl_keras.scripts.data_flags import CORPUS_FLAGS
from txl_keras.scripts.data_flags import TOKENIZER_FLAGS
from txl_keras.scripts.dynamic_flags import DYNAMIC_FLAGS

FLAGS = flags.FLAGS
# Any other flag is listed first, as a general flag.
_TOPICS = {
    "data": (
        *CORPUS_FLAGS, "split", "batch_size", "segment_length", "order",
        "reset_documents", "varlen",
    ),
    "tokenizer": (*TOKENIZER_FLAGS, "vocabulary"),
    "model": (
        *model_flags.names(), "context_factor", "max_span", "not_predicted",
        "reuse_half",
    ),
    "optimization": (
        "initialize_from", "precision", "seed", "max_steps", "minutes",
        "optimizer", "weight_decay", "momentum", "beta_2", "clip_norm",
        "schedule", "learning_rate", "min_learning_rate", "warmup_steps",
        "accumulate_steps", "half_loss", "intermediate_losses",
    ),
    "evaluation": (
        "max_eval_tokens", "eval_batch_size", "eval_every", *DYNAMIC_FLAGS,
    ),
    "device": (
        "tpu", "num_cpu_devices", "steps_per_execution", "profile_steps",
        "attention_kernel", "tpu_type", "compile_only", "compile_steps",
    ),
}  # fmt: skip


class _Help(flags.BooleanFlag):
    def parse(self, argument):
        super().parse(argument)
        if self.value:
            print(sys.modules["__main__"].__doc__)
            print(describe_flags())
            sys.exit()


def define_help_flag():
    """Replaces absl's `--help`, which prints one alphabetical list."""
    app.define_help_flags()
    flags.DEFINE_flag(
        _Help("help", False, "show this help", "?", allow_override=True)
    )


def script_flags():
    """Returns the flags of the script `sys.argv[0]`, sorted by name."""
    found = [
        flag
        for module, members in FLAGS.flags_by_module_dict().items()
        if module == sys.argv[0] or module.startswith("txl_keras.scripts.")
        for flag in members
        if flag.name != "help"
    ]
    return sorted(found, key=lambda flag: flag.name)


def flags_by_topic():
    """Returns the flags of the script, sorted lists by topic."""
    topic_of = {name: topic for topic in _TOPICS for name in _TOPICS[topic]}
    found = {topic: [] for topic in ("general", *_TOPICS)}
    for flag in script_flags():
        found[topic_of.get(flag.name, "general")].append(flag)
    return {topic: members for topic, members in found.items() if members}


def describe_flags():
    """Returns the help of the script's flags, by topic."""
    topics = flags_by_topic()
    for topic, members in topics.items():
        # absl groups flags by module: each topic is registered as a module.
        for flag in members:
            FLAGS.register_key_flag_for_module(f"{topic} flags", flag)
    return "\n".join(FLAGS.module_help(f"{topic} flags") for topic in topics)
