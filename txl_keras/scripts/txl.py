"""The command `txl`, which finds and runs the scripts of train/.

`txl --help` does not import TensorFlow, because that takes seconds.
"""

import ast
import difflib
import importlib.util
import runpy
import sys

import txl_keras
from txl_keras.scripts.output import lasting_output

# Module of `txl_keras.train` by command. train/benchmark.py and
# train/tpu_table.py need a checkout.
COMMANDS = {
    "train": "main",
    "evaluate": "evaluate",
    "generate": "generate",
    "demo": "demo",
    "export": "export",
    "finetune": "finetune",
    "convert": "convert",
    "prepare": "prepare_data",
    "plot": "plot",
    "pretrain_xlnet": "pretrain_xlnet",
}


def main():
    """Runs the script that the first argument names, with the other ones."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command == "help" and arguments:
        command, arguments = arguments[0], ["--help"]
    if command in ("--help", "-h", "help"):
        with lasting_output():
            print(_help())
        return
    if command == "--version":
        print(f"txl_keras {txl_keras.__version__}")
        return
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f" Did you mean `txl {near[0]}`?" if near else ""
        sys.exit(
            f"Error: the command must be one of {', '.join(COMMANDS)}. "
            f"Received: {command}.{hint}"
        )
    importlib.import_module("txl_keras.scripts.quiet")
    sys.argv[1:] = arguments
    # Run like `python -m`: processes that it starts import it by this name.
    name = f"txl_keras.train.{COMMANDS[command]}"
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _help():
    lines = [
        "Usage: txl COMMAND [--FLAG=VALUE ...]",
        "",
        *(f"  {name:15} {_summary(name)}" for name in COMMANDS),
        "",
        "`txl help COMMAND` lists its flags. --flagfile=NAME reads flags "
        "from a file\nof your own, or from one that comes with txl: "
        "--flagfile=quickstart.\nTF_CPP_MIN_LOG_LEVEL=0 in the environment "
        "shows the log of TensorFlow.",
    ]
    return "\n".join(lines)


def _summary(command):
    """Returns the first line of a script's docstring, without running it."""
    spec = importlib.util.find_spec(f"txl_keras.train.{COMMANDS[command]}")
    doc = ast.get_docstring(ast.parse(spec.loader.get_source(spec.name)))
    return doc.partition("\n")[0]
