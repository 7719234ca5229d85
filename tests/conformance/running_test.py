"""What scripts share."""

import contextlib
import io
import os
import re
import sys

import pytest
from script_flags import flags_of
from script_runs import TRAIN
from script_runs import run_code

from txl_keras.scripts import training_flags
from txl_keras.scripts.options import describe_flags
from txl_keras.scripts.output import lasting_output
from txl_keras.scripts.txl import COMMANDS
from txl_keras.workdir import Workdir


def test_help_lists_flags_by_topic(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    with flags_of("main.py", "--workdir=run", "--corpus=text") as parse:
        parse()
        topics = re.split(r"\n*(\w+) flags:\n", describe_flags())
        flags = {
            topic: set(re.findall(r"^  --(?:\[no\])?(\w+)", text, re.M))
            for topic, text in zip(topics[1::2], topics[2::2], strict=True)
        }
    # A new flag belongs to a topic.
    assert flags.pop("general") == {
        "workdir", "checkpoint_every", "max_to_keep", "max_sample_tokens",
    }  # fmt: skip
    assert list(flags) == [
        "data", "tokenizer", "model", "optimization", "evaluation", "device",
    ]  # fmt: skip
    for topic, name in (
        ("data", "corpus"),
        ("tokenizer", "line_end"),
        ("model", "num_layers"),
        ("optimization", "learning_rate"),
        ("evaluation", "eval_every"),
        ("device", "tpu"),
    ):
        assert name in flags[topic]


@pytest.mark.parametrize(
    "given, message",
    [
        ("--work_dir=run", "Did you mean --workdir?"),
        ("--learning_rte=1", "Did you mean --learning_rate?"),
        ("--nodropnewlines", "Did you mean --drop_newlines?"),
        ("--frobnicate", "unknown flag --frobnicate."),
    ],
)
def test_a_flag_of_others_is_told_with_the_one_that_was_meant(
    given, message, fail
):
    fail("main.py", given, messages=[message])


_WRONG_VALUE = """
import runpy
import sys

sys.argv = [*sys.argv[1:], "--learning_rate=high"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert "keras" in sys.modules
    unused = {"jax", "sklearn", "txl_keras.data.permutation"}
    print("needless:", sorted(unused & {*sys.modules}))
"""


def test_a_wrong_value_of_a_flag_is_named_and_little_imported(monkeypatch):
    # The first command of the README.
    readme = (TRAIN.parent / "README.md").read_text("utf-8")
    command = re.search(r"^pip install .* && python (.*)$", readme, re.M)[1]
    assert "--flagfile" in command
    script, *flags = command.split()
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    done = run_code(_WRONG_VALUE, TRAIN.parent / script, *flags)
    assert done.returncode == 1
    errors = done.stderr + done.stdout
    assert "flag --learning_rate=high:" in errors
    # The log of TensorFlow does not stand in front of it.
    assert "oneDNN" not in errors
    assert "cuda" not in errors
    assert "needless: []" in done.stdout.splitlines()


def run_txl(*arguments, before="", **options):
    """Runs `txl` in a process of its own, after some lines of code."""
    code = (
        f"import sys\n{before}\nfrom txl_keras.scripts.txl import main\nmain()"
    )
    return run_code(code, *arguments, **options)


@pytest.mark.parametrize(
    "arguments, printed",
    [
        (["--version"], "txl_keras 0."),
        (["--help"], "  train           Trains a Transformer-XL"),
        (["trian"], "Received: trian. Did you mean `txl train`?"),
        (["help", "trian"], "Did you mean `txl train`?"),
    ],
)
def test_help_and_what_is_misspelled_need_no_tensorflow(arguments, printed):
    done = run_txl(*arguments, before="sys.modules['tensorflow'] = None")
    assert printed in done.stdout + done.stderr
    is_right = arguments in (["--version"], ["--help"])
    assert (done.returncode == 0) == is_right


def test_each_command_has_a_help_and_the_log_of_tensorflow_can_be_shown():
    done = run_txl("help", "convert", TF_CPP_MIN_LOG_LEVEL="0")
    assert done.returncode == 0
    assert "Converts published checkpoints" in done.stdout
    assert "--output" in done.stdout
    assert "This TensorFlow binary" in done.stderr


def test_help_that_nobody_reads_has_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        done = run_txl("--help", stdout=pipe)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_runs_without_stdout():
    with contextlib.redirect_stdout(None), lasting_output():  # as after `>&-`
        print("lost", flush=True)
        assert not sys.stdout.isatty()


def test_what_a_terminal_cannot_encode_does_not_end_a_command():
    file = io.BytesIO()
    terminal = io.TextIOWrapper(file, encoding="latin-1")
    with contextlib.redirect_stdout(terminal), lasting_output():
        print("\xe9 \u2192")
    assert file.getvalue() == b"\xe9 \\u2192\n"


_INTERRUPT = """
import os
import signal
import sys

class Finder:
    def find_spec(name, *_):
        if name == "tensorflow":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupted_import_has_no_traceback(command):
    done = run_txl(command, before=_INTERRUPT)
    assert (done.returncode, done.stderr) == (130, "")
    script = str(TRAIN / f"{COMMANDS[command]}.py")
    code = f"{_INTERRUPT}import runpy\nrunpy.run_path({script!r})"
    done = run_code(code)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_empty_path_is_not_the_present_folder(fail, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"class_name": "TransformerXLCausalLM"}
    config |= dict.fromkeys(("flags", "model", "data", "corpus"), {})
    Workdir(".").claim(config)
    convert = "convert.py", "--input_format=workdir"
    fail(*convert, "--input=", "--output=new", messages=["is not empty"])
    messages = ["`output` must be given"]
    fail(*convert, "--input=.", "--output=", messages=messages)
    (tmp_path / "file").write_text("")
    message = "`output` must be a folder that can be written to"
    messages = [message, "output=file/new"]
    fail(*convert, "--input=.", "--output=file/new", messages=messages)


@pytest.mark.parametrize(
    "flags, of_run, expected",
    [
        ("", {"learning_rate": 0.004}, 0.002),
        ("", {}, 5e-5),
        ("--learning_rate=0.003", {"learning_rate": 0.004}, 0.003),
        ("--initialize_from=python_stdlib_small", {"seed": 1}, 5e-4),
    ],
)
def test_fine_tuning_takes_smaller_steps(flags, of_run, expected, tmp_path):
    (tmp_path / "flags").write_text(flags)
    with flags_of("main.py", "--workdir=a", "--corpus=b") as parse:
        parse(tmp_path / "flags")
        training_flags.set_fine_tuning_rate(of_run)
        rate = training_flags.result_settings()["learning_rate"]
        assert rate == expected
