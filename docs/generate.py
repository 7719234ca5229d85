"""Writes docs/flags.md and docs/api.md from the code, and docs/notebooks.

    python docs/generate.py
    python docs/generate.py --check  # exits 1 if a file is stale, and names it
    python docs/generate.py --execute [NAME ...]  # runs notebooks, too

All files are the same on every machine: they hold no paths and no addresses.
Only the outputs of notebooks come from a machine. They are kept as long as the
code of the notebook stays the same.
"""

import argparse
import importlib
import inspect
import json
import os
import pathlib
import pkgutil
import re
import runpy
import sys
import tempfile
import textwrap
import types

from absl import flags

import txl_keras
from txl_keras.scripts.options import flags_by_topic
from txl_keras.scripts.txl import COMMANDS

FLAGS = flags.FLAGS

_DOCS = pathlib.Path(__file__).resolve().parent
_NOTE = "<!-- Written by docs/generate.py. Do not edit. -->"
_CODE = re.compile(r"(`[^`]*`)")
# What absl adds to the description of a flag that may be repeated.
_REPEAT = re.compile(r";\s+repeat this option to specify a list of values$")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# A period that ends a sentence, and not an abbreviation.
_PERIOD = re.compile(r"(?<!\bal)(?<!\be\.g)(?<!\bi\.e)\.(?=\s|$)")
# Modules that have no `__all__`: all their public names are exported.
_MODULES = ("txl_keras.callbacks", "txl_keras.metrics", "txl_keras.optimizers")

# Guides that are notebooks, too.
_NOTEBOOKS = (
    "three_minutes",
    "own_text",
    "recall",
    "classification",
    "music_ids",
    "time_series",
    "agents",
)
_INSTALL = """\
import importlib.util

if importlib.util.find_spec("txl_keras") is None:  # as on Colab
    %pip install --quiet git+REPOSITORY
"""
_LINK = re.compile(r"\]\((?!http)")
# What differs from run to run: durations and speeds of Keras and of `txl`.
_TIMES = re.compile(
    r" - \d+s - \d+\w?s/(step|epoch)| \d+\w?s \d+\w?s/(step|epoch)"
    r"|, tokens/s [\d,]*\d|, [\d:]+ left"
    r"| in [\d:]+ s including [^:]*: [\d,]+ tokens/s",
    re.MULTILINE,
)
_TERMINAL = re.compile(r"^.*\r(?!\n)|\x1b\[[\d;]*m|\x08", re.MULTILINE)
_MAX_LINES, _MAX_COLUMNS = 30, 200
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)

_FLAGS_INTRODUCTION = """\
The tables below list all flags by command and topic, as does `txl COMMAND
--help`. `--nodrop_newlines` turns off a boolean flag such as `--drop_newlines`.
`--flagfile=NAME` reads flags from a file, or from one that comes with the
package, such as `quickstart`. If a flag is given twice, the last one counts. An
empty default means that the flag is not set.
"""
_API_INTRODUCTION = """\
This page lists every exported name by package, with its signature and the first
sentence of its docstring. For classes it lists public methods, except methods
inherited from Keras. `help(name)` prints the whole docstring, with shapes,
errors and an example.
"""


def main():
    parser = argparse.ArgumentParser(
        description="Writes flags.md, api.md and notebooks."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 if a file differs from the code",
    )
    parser.add_argument(
        "--execute",
        nargs="*",
        choices=_NOTEBOOKS,
        metavar="NAME",
        help="run these notebooks, by default all, and store their outputs",
    )
    arguments = parser.parse_args()
    is_check, execute = arguments.check, arguments.execute
    stale = []
    files = {"flags.md": flags_page(), "api.md": api_page()}
    for name in _NOTEBOOKS:
        guide = (_DOCS / f"{name}.md").read_text("utf-8")
        path = _DOCS / f"notebooks/{name}.ipynb"
        content = notebook(guide)
        if execute is not None and name in (execute or _NOTEBOOKS):
            content = executed(content)
        elif path.exists():
            keep_outputs(json.loads(path.read_text("utf-8")), content)
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        files[f"notebooks/{name}.ipynb"] = text
    for name, text in files.items():
        path = _DOCS / name
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(f"docs/{name}")
    if stale:
        sys.exit(
            f"Error: {' and '.join(stale)} must agree with the code: run "
            "python docs/generate.py"
        )


# === Notebooks ===


def notebook(guide):
    """Returns a guide as a Jupyter notebook, without outputs."""
    title, _, rest = guide.partition("\n")
    sources = [("markdown", title), ("code", _INSTALL)]
    # Text, language and code in turns; nothing follows the last text.
    parts = [*_BLOCK.split(rest), "", ""]
    for text, language, code in zip(*[iter(parts)] * 3, strict=True):
        sources.append(("markdown", _LINK.sub("](../", text)))
        sources.append(("code", "%%bash -e\n" * (language == "bash") + code))
    cells = [
        _cell(i, kind, source.strip("\n"))
        for i, (kind, source) in enumerate(sources)
        if source.strip()
    ]
    metadata = {"language_info": {"name": "python"}}
    content = {"nbformat": 4, "nbformat_minor": 5}
    return content | {"metadata": metadata, "cells": cells}


def _cell(number, kind, source):
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"source": source.splitlines(keepends=True)}


def _code_cells(content):
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def keep_outputs(old, new):
    """Copies the outputs of a notebook with the same code."""
    old, new = _code_cells(old), _code_cells(new)
    # All of it, because a cell depends on those before.
    if [cell["source"] for cell in old] == [cell["source"] for cell in new]:
        for cell, other in zip(old, new, strict=True):
            other["outputs"] = cell["outputs"]


def executed(content):
    """Runs a notebook in an empty folder and returns it with its outputs."""
    try:
        import nbclient
        import nbformat
    except ImportError as error:
        sys.exit(f'Error: {error}: run pip install -e ".[docs]"')
    # For the command `txl` of this environment.
    folders = os.path.dirname(sys.executable), os.environ["PATH"]
    os.environ["PATH"] = os.pathsep.join(folders)
    result = nbformat.reads(json.dumps(content), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(result, resources=resources).execute()
    pairs = zip(_code_cells(content), _code_cells(result), strict=True)
    for cell, finished in pairs:
        cell["outputs"] = _clean(finished["outputs"], folder)
    return content


def _clean(outputs, folder):
    """Returns the printed text of a cell, then its pictures and values.

    Leaves out warnings, durations, the folder, and parts of long text.
    """
    printed = (o["text"] for o in outputs if o.get("name") == "stdout")
    text = _TERMINAL.sub("", "".join(printed)).replace(folder, ".")
    lines = [
        line if len(line) <= _MAX_COLUMNS else f"{line[:_MAX_COLUMNS]}...\n"
        for line in _TIMES.sub("", text).splitlines(keepends=True)
    ]
    if len(lines) > _MAX_LINES:
        half = _MAX_LINES // 2
        lines = [*lines[:half], "...\n", *lines[-half:]]
    stream = {"output_type": "stream", "name": "stdout", "text": lines}
    cleaned = [stream] if lines else []
    for output in outputs:
        found = output.get("data", {})
        kind = "image/png" if "image/png" in found else "text/plain"
        if kind in found:
            data = {kind: _ADDRESS.sub("", found[kind])}
            display = {"output_type": "display_data", "data": data}
            cleaned.append(display | {"metadata": {}})
    return cleaned


# === Flags ===


def flags_page():
    """Returns the text of flags.md."""
    parts = [
        "# Which flags does each command have?",
        _NOTE,
        _FLAGS_INTRODUCTION,
    ]
    for command, script in COMMANDS.items():
        parts += _command_parts(command, f"{script}.py")
    return _page(parts)


def _command_parts(command, script):
    """Returns the heading, summary and tables of a command.

    Runs the script as a module, which defines its flags but does not call its
    main function, and removes the flags again: others have the same names.
    """
    known, program = set(FLAGS), sys.argv[0]
    path = _DOCS.parent / "train" / script
    names = runpy.run_path(str(path), run_name=script)
    sys.argv[0] = script  # by which `flags_by_topic` finds its flags
    try:
        parts = [f"## txl {command}", _escape(names["__doc__"].splitlines()[0])]
        for topic, members in flags_by_topic().items():
            rows = map(_flag_row, members)
            table = ["| flag | default | |", "| --- | --- | --- |", *rows]
            parts += [f"### {topic.capitalize()} flags", "\n".join(table)]
        return parts
    finally:
        sys.argv[0] = program
        for name in set(FLAGS) - known:
            delattr(FLAGS, name)


def _flag_row(flag):
    description = _REPEAT.sub("", flag.help)
    if values := getattr(flag.parser, "enum_values", None):
        # absl puts the values in front of the description.
        description = description.removeprefix(f"<{'|'.join(values)}>: ")
        number = "Any" if isinstance(flag, flags.MultiFlag) else "One"
        values = ", ".join(f"`{value}`" for value in values)
        description += f" {number} of {values}."
    cells = f"`--{flag.name}`", _default(flag), _escape(description)
    row = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {row} |"


def _default(flag):
    value = flag.default
    if value is None:
        return "" if _is_valid(flag) else "required"
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, bool):
        value = str(value).lower()
    return "" if value == "" else f"`{value}`"


def _is_valid(flag):
    """Returns whether the validators of a flag accept its default."""
    try:
        for validator in flag.validators:
            validator.verify(FLAGS)
    except flags.ValidationError:
        return False
    return True


# === Exported names ===


def api_page():
    """Returns the text of api.md."""
    contents, sections, seen = [], [], {}
    for module in _modules():
        name = module.__name__
        anchor = name.replace(".", "")
        contents.append(f"- [{name}](#{anchor}): {_first_sentence(module)}")
        sections += [f"## {name}", _first_sentence(module)]
        for exported in _exports(module):
            sections += _export_parts(exported, getattr(module, exported), seen)
            seen.setdefault(id(getattr(module, exported)), name)
    contents = "\n".join(_wrap(line) for line in contents)
    title = "# What can I import from txl_keras?"
    return _page([title, _NOTE, _API_INTRODUCTION, contents, *sections])


def _modules():
    """Returns the modules that export names, sorted by name."""
    names = [
        info.name
        for info in pkgutil.walk_packages(txl_keras.__path__, "txl_keras.")
        if info.ispkg
        or info.name.startswith("txl_keras.extensions.")
        or info.name in _MODULES
    ]
    modules = [importlib.import_module(name) for name in sorted(names)]
    return [module for module in modules if _exports(module)]


def _exports(module):
    if module.__name__ not in _MODULES:
        return sorted(getattr(module, "__all__", ()))
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    )


def _export_parts(name, value, seen):
    """Returns the heading, signature, sentence and methods of a name."""
    parts = [f"### {name}"]
    if id(value) in seen:
        return [*parts, f"See {seen[id(value)]}."]
    if not callable(value):
        return [*parts, f"A `{type(value).__name__}`."]
    parts += [
        f"```text\n{_call(name, inspect.signature(value))}\n```",
        _wrap(_first_sentence(value)),
    ]
    if inspect.isclass(value):
        methods = "\n".join(_method_lines(value))
        parts += [methods] if methods else []
    return parts


def _method_lines(cls):
    """Yields an item of a list for each documented method of a class."""
    for name in sorted(dir(cls)):
        definitions = [
            vars(base)[name]
            for base in cls.__mro__
            if base.__module__.startswith("txl_keras") and name in vars(base)
        ]
        kinds = types.FunctionType, classmethod, staticmethod
        if name.startswith("_") or not definitions:
            continue
        if not isinstance(definitions[0], kinds):
            continue
        # An override that only follows the interface may have no docstring.
        documented = [d for d in definitions if d.__doc__]
        if documented:
            signature = inspect.signature(getattr(cls, name))
            if isinstance(definitions[0], types.FunctionType):
                _, *parameters = signature.parameters.values()  # without self
                signature = signature.replace(parameters=parameters)
            text = _ADDRESS.sub("", f"{name}{_without_annotations(signature)}")
            yield _wrap(f"- `{text}`: {_first_sentence(documented[0])}")


def _call(name, signature):
    """Returns a call on one line or, if that is too long, one per argument."""
    signature = _without_annotations(signature)
    line = f"{name}{signature}"
    if len(line) > 80:
        arguments = _arguments(signature)
        line = "\n".join([f"{name}(", *(f"    {a}," for a in arguments), ")"])
    return _ADDRESS.sub("", line)


def _arguments(signature):
    """Yields the arguments, with a `*` before those that are keyword-only."""
    has_star = False
    for parameter in signature.parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        has_star |= parameter.kind == parameter.VAR_POSITIONAL
        yield str(parameter)


def _without_annotations(signature):
    return signature.replace(
        parameters=[
            parameter.replace(annotation=parameter.empty)
            for parameter in signature.parameters.values()
        ],
        return_annotation=signature.empty,
    )


def _first_sentence(value):
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    end = _PERIOD.search(text)
    return _escape(text[: end.end()] if end else text)


# === Markdown ===


def _page(parts):
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _escape(text):
    """Escapes what Markdown would read as HTML or emphasis, except in code."""
    parts = _CODE.split(" ".join(text.split()))
    parts[::2] = [re.sub(r"([<*])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _wrap(text):
    """Wraps a paragraph, or an item of a list."""
    mark = "- " if text.startswith("- ") else ""
    return textwrap.fill(
        text.removeprefix(mark),
        80,
        initial_indent=mark,  # even before a long word
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    main()
