"""Finds misspelled flags without importing a script, which takes seconds."""

import ast
import difflib
import pathlib
import re
import sys

from absl import app
from absl import flags
from absl import logging  # noqa: F401, defines flags

# Names that flags have in the original code and in other trainers.
_OTHER_NAMES = {
    "clamp_len": "clamp_length",
    "clip": "clip_norm",
    "d_embed": "embedding_dim",
    "d_head": "head_dim",
    "d_inner": "intermediate_dim",
    "d_model": "hidden_dim",
    "data": "corpus",
    "dropatt": "attention_dropout",
    "eval_batch": "eval_batch_size",
    "lr": "learning_rate",
    "max_step": "max_steps",
    "mem_len": "memory_length",
    "model_dir": "workdir",
    "n_head": "num_heads",
    "n_layer": "num_layers",
    "output_dir": "workdir",
    "steps": "max_steps",
    "tgt_len": "segment_length",
    "train_steps": "max_steps",
    "vocab_size": "vocabulary_size",
    "warmup_step": "warmup_steps",
    "wd": "weight_decay",
    "work_dir": "workdir",
}
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?P<value>=.*)?", re.DOTALL)


def check(script, arguments):
    """Ends the program if an argument is a flag that no script has."""
    # Flags of other scripts are left to absl, which knows them all.
    app.define_help_flags()
    # absl reads the last two, and lists them nowhere.
    known = {*flags.FLAGS, *_defined(script), "h", "flagfile", "undefok"}
    takes_next = False
    for argument in arguments:
        match = _FLAG.fullmatch(argument)
        if argument == "--":
            break
        if match and not takes_next:
            name = match["name"]
            if name not in known and name.removeprefix("no") not in known:
                sys.exit(unknown(name, known))
        # The next argument may be the value of this flag.
        takes_next = bool(match) and not match["value"] and not takes_next


def unknown(name, known):
    """Returns the error for a flag, with a name that may have been meant."""
    near = difflib.get_close_matches(name.replace("-", "_"), known, 1)
    meant = _OTHER_NAMES.get(name) or "".join(near)
    hint = f" Did you mean --{meant}?" if meant in known else ""
    return f"Error: unknown flag --{name}.{hint}"


def _defined(script):
    """Yields names that a script, or a module beside this one, defines."""
    for path in (script, *pathlib.Path(__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = getattr(node, "func", None)
            function = getattr(called, "attr", getattr(called, "id", ""))
            if function.lower().lstrip("_").startswith("define"):
                values = (getattr(x, "value", None) for x in node.args[:2])
                yield from (x for x in values if isinstance(x, str))
