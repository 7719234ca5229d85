"""Options of the commands: classes whose annotated fields become flags.

class Sampling(Options):
    '''Holds the options of sampling.

    Evaluation options:
    top_k: Sample from the k most likely tokens only. Default: no limit.
    temperature: Softmax temperature; 0 takes the most likely token.
    '''

    top_k: integer(1) = None
    temperature: float = 1.0

Sampling.define()
"""

import functools
import inspect
import re
import sys

from absl import app
from absl import flags

FLAGS = flags.FLAGS
REQUIRED = object()  # in place of the default of an option
_TOPICS = (
    "general", "data", "tokenizer", "model", "optimization", "evaluation",
    "device",
)  # fmt: skip
_DEFINE = {
    str: flags.DEFINE_string,
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    list: flags.DEFINE_list,
}
# A name, and its description with more lines that are indented; or a topic.
_DESCRIPTION = re.compile(r"^(\w+)( options)?:(.*(?:\n +.*)*)", re.MULTILINE)
_topics = {}  # of the options that were defined


def integer(least, most=None):
    """Returns the type of an option that is an integer in a range."""
    return functools.partial(
        flags.DEFINE_integer, lower_bound=least, upper_bound=most
    )


def number(least, most=None):
    """Returns the type of an option that is a number in a range."""
    return functools.partial(
        flags.DEFINE_float, lower_bound=least, upper_bound=most
    )


def one_of(values):
    """Returns the type of an option that has one of some values."""
    return functools.partial(flags.DEFINE_enum, enum_values=list(values))


def several_of(values):
    """Returns the type of an option that may be repeated, with such values."""
    return functools.partial(flags.DEFINE_multi_enum, enum_values=list(values))


class Options:
    """Base of classes with options, described by topic in a docstring."""

    def __init_subclass__(cls, **values):
        # `values` replace words in braces in the descriptions.
        topic = "general"
        cls._described = {}
        for name, is_topic, text in _DESCRIPTION.findall(
            inspect.getdoc(cls) or ""
        ):
            if is_topic:
                topic = name.lower()
            else:
                text = " ".join(text.split()).format(**values)
                cls._described[name] = topic, text

    @classmethod
    def names(cls):
        """Returns the names of the options."""
        return tuple(inspect.get_annotations(cls))

    @classmethod
    def values(cls):
        """Returns the values of the options that are flags, by name."""
        names = [name for name in cls.names() if name in FLAGS]
        return {name: FLAGS[name].value for name in names}

    @classmethod
    def define(cls, *names, note="", **defaults):
        """Defines flags, by default of all options, with other `defaults`."""
        # `note` is added to each description.
        types = inspect.get_annotations(cls)
        for name in names or types:
            define = types[name]
            default = defaults.get(name, getattr(cls, name))
            is_required = default is REQUIRED
            topic, text = cls._described.get(name, ("general", ""))
            _DEFINE.get(define, define)(
                name=name,
                default=None if is_required else default,
                help=text + note,
                required=is_required,
            )
            _topics[name] = topic


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


def defined_flags():
    """Returns the flags of all options of the script, sorted by name."""
    return [FLAGS[name] for name in sorted(_topics) if name in FLAGS]


def flags_by_topic():
    """Returns the flags of the script, sorted lists by topic."""
    found = {topic: [] for topic in _TOPICS}
    for flag in defined_flags():
        found[_topics[flag.name]].append(flag)
    return {topic: members for topic, members in found.items() if members}


def describe_flags():
    """Returns the help of the script's flags, by topic."""
    topics = flags_by_topic()
    for topic, members in topics.items():
        # absl groups flags by module: each topic is registered as a module.
        for flag in members:
            FLAGS.register_key_flag_for_module(f"{topic} flags", flag)
    return "\n".join(FLAGS.module_help(f"{topic} flags") for topic in topics)
