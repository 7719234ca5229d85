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
import os
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
# An option's name and description (further lines are indented), or a topic.
_DESCRIPTION = re.compile(r"^(\w+)( options)?:(.*(?:\n +.*)*)", re.MULTILINE)


class _PathParser(flags.ArgumentParser):
    def parse(self, argument):
        return os.path.expanduser(super().parse(argument))


path = functools.partial(flags.DEFINE, _PathParser())  # expands `~`


def integer(least, most=None):
    """Returns the type of an option that is an integer in a range."""
    return functools.partial(
        flags.DEFINE_integer, lower_bound=least, upper_bound=most
    )


def number(least, most=None):
    """Returns the type of an option that is a float in a range."""
    return functools.partial(
        flags.DEFINE_float, lower_bound=least, upper_bound=most
    )


def one_of(values):
    """Returns the type of an option that takes one of the given values."""
    return functools.partial(flags.DEFINE_enum, enum_values=list(values))


class Options:
    """Base of classes with options, described by topic in a docstring."""

    def __init_subclass__(cls, free=None, **values):
        # `free` options do not affect the result of a run; by default all are
        # free. `values` replace words in braces in the descriptions.
        topic, cls._free = "general", cls.names() if free is None else free
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
        """Defines flags for some or all options, with other `defaults`."""
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
                # absl groups flags by module: each topic is one.
                module_name=f"{topic} flags",
            )
            FLAGS[name].affects_result = name not in cls._free


def numbers(name, kind):
    """Parses a flag that lists one or more numbers, of type int or float."""
    try:
        return [kind(text) for text in FLAGS[name].value or [""]]
    except ValueError:
        expected = f"numbers ({kind.__name__}) separated by commas"
        refuse(True, f"`{name}` must be {expected}.")


def refuse(is_wrong, expected):
    """Raises `ValueError` with the values of the flags that it names."""
    if is_wrong:
        # A flag in a remedy, such as --preset=quickstart, only if it was given.
        values = {
            name: FLAGS[name].value
            for name, remedy in re.findall(r"(?:`|--)(\w+)\b(=?)", expected)
            if name in FLAGS and (FLAGS[name].present or not remedy)
        }
        received = (
            f"--{k}={','.join(map(str, v)) if isinstance(v, list) else v}"
            for k, v in values.items()
        )
        raise ValueError(f"{expected} Received: {', '.join(received)}")


def check_used(by, users):
    """Checks that the value of flag `by` uses the flags that were given."""
    # `users` maps a flag's name to the values of `by` that use the flag.
    for name, values in users.items():
        is_unused = FLAGS[name].present and FLAGS[by].value not in values
        expected = f"with --{by}={' or '.join(values)}"
        refuse(is_unused, f"`{name}` can only be given {expected}.")


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
    found = [x for members in flags_by_topic().values() for x in members]
    return sorted(found, key=lambda flag: flag.name)


def flags_by_topic():
    """Returns the flags of the script, sorted lists by topic."""
    found = FLAGS.flags_by_module_dict()
    found = {topic: found.get(f"{topic} flags", []) for topic in _TOPICS}
    return {k: sorted(v, key=lambda x: x.name) for k, v in found.items() if v}


def describe_flags():
    """Returns the help of the script's flags, by topic."""
    modules = (f"{topic} flags" for topic in flags_by_topic())
    return "\n".join(map(FLAGS.module_help, modules))
