"""Settings and fixtures that all tests share."""

import contextlib
import gc
import io
import os
import runpy
import signal
import sys
import termios

# LLVM's optimizations and MLIR's emitters are most of the time that XLA takes
# to compile, in the tests and in the programs they start. `XLA_FLAGS= pytest`
# compiles as users do. Set before a backend is imported, which reads it once.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    # Two processes keep two cores busy by themselves.
    " --xla_cpu_parallel_codegen_split_count=1",
)

import keras  # noqa: E402

BACKEND = keras.backend.backend()
if BACKEND == "tensorflow":
    from on_tensorflow import *  # noqa: E402, F403
else:
    # What runs on every backend does so where it is not installed, too.
    sys.modules["tensorflow"] = None
if BACKEND == "torch":
    import on_torch  # noqa: E402, F401

import pytest  # noqa: E402
from absl import flags as absl_flags  # noqa: E402
from factories import save_run  # noqa: E402
from factories import seed_weights  # noqa: E402
from script_runs import TRAIN  # noqa: E402
from script_runs import made_once  # noqa: E402

from txl_keras import backend  # noqa: E402
from txl_keras.data import ByteTokenizer  # noqa: E402
from txl_keras.data import CharacterTokenizer  # noqa: E402
from txl_keras.models import TransformerXLCausalLM  # noqa: E402


def pytest_ignore_collect(collection_path):
    """Other backends than TensorFlow import no file without a marked test."""
    if BACKEND == "tensorflow":
        return None
    files = [collection_path]
    if collection_path.is_dir():
        files = collection_path.rglob("*_test.py")
    is_marked = any("mark.every_backend" in x.read_text("utf-8") for x in files)
    return None if is_marked else True


def pytest_collection_modifyitems(items):
    """Puts long tests first: short ones fill the idle time of a process."""
    if BACKEND != "tensorflow":
        items[:] = [
            item
            for item in items
            if item.get_closest_marker("every_backend")
            and not item.get_closest_marker("tensorflow")
        ]
    long = ("conformance", "train")
    items.sort(key=lambda item: item.path.parent.name not in long)


@pytest.fixture(autouse=True, scope="session")
def own_data_dir(tmp_path_factory):
    """Prepared text of tests, and of the scripts they run, lies apart."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("tensorflow_datasets"))
        patch.setenv("TFDS_DATA_DIR", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def garbage_is_collected_rarely():
    """A collection takes half a second with all that TensorFlow imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@pytest.fixture
def tensorflow_installed(monkeypatch):
    """TensorFlow for what needs it on every backend, such as its files."""
    if BACKEND != "tensorflow":
        monkeypatch.delitem(sys.modules, "tensorflow")
        yield
        vars(backend.tf).clear()
    else:
        yield


@pytest.fixture(autouse=True)
def same_weights_every_time():
    seed_weights(3)


@pytest.fixture
def here(monkeypatch):
    """Function that runs a script in this process.

    That saves the seconds of importing TensorFlow. The function returns what
    the script printed and its exit message, `None` on success. It raises the
    errors that the script would show with a traceback. Its attributes
    `stdout` and `stderr` may be files to which the script prints.
    """

    def run(name, *flags):
        # Or names of layers would count on.
        keras.utils.clear_session(free_memory=False)
        known = set(absl_flags.FLAGS)
        printed = io.StringIO()
        monkeypatch.setattr(sys, "argv", [name, *map(str, flags)])
        try:
            with (
                contextlib.redirect_stdout(run.stdout or printed),
                contextlib.redirect_stderr(run.stderr or sys.stderr),
            ):
                runpy.run_path(str(TRAIN / name), run_name="__main__")
        except SystemExit as stop:
            return printed.getvalue(), stop.code
        finally:
            # The next script defines flags of the same names.
            for flag in set(absl_flags.FLAGS) - known:
                delattr(absl_flags.FLAGS, flag)
            absl_flags.FLAGS.unparse_flags()
        raise AssertionError("absl ends a program by `sys.exit`")

    run.stdout = run.stderr = None
    return run


@pytest.fixture
def succeed(here):
    """Function that runs a script as `here`, and returns what it printed."""

    def run(name, *flags):
        printed, error = here(name, *flags)
        assert error is None
        return printed

    return run


@pytest.fixture
def fail(here):
    """Function that runs a script as `here`, and returns its error.

    The error must contain all `messages`.
    """

    def run(name, *flags, messages=()):
        _, error = here(name, *flags)
        assert isinstance(error, str)
        for message in messages:
            assert message in error
        return error

    return run


@pytest.fixture
def refuse(fail):
    """Function that runs a script with each of several wrong flags.

    It takes pairs of the flags and parts of the error, and flags for all.
    """

    def run(name, cases, *flags):
        for wrong, messages in cases:
            fail(name, *flags, *wrong, messages=messages)

    return run


@pytest.fixture
def terminal(here):
    """Lets scripts print to a terminal; returns its other end, to read from.

    It holds about 8 kB until they are read.
    """
    reader, writer = os.openpty()
    os.set_blocking(reader, False)
    termios.tcsetwinsize(writer, (24, 80))
    with open(reader, "rb", buffering=0) as other, open(writer, "w") as file:
        here.stdout = here.stderr = file
        yield other


@pytest.fixture
def heeded_signals():
    """Lets a test send itself signals that pytest's parent may ignore."""
    actions = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    before = {n: signal.signal(n, action) for n, action in actions.items()}
    yield
    for number, action in before.items():
        signal.signal(number, action)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Text file of 900 lines, which tests must not change."""
    lines = [f"Sentence {i} says é: {i * i % 97}.\n" for i in range(900)]
    return made_once(
        lambda path: path.write_text("".join(lines), "utf-8"),
        "mine.txt",
        tmp_path_factory,
    )


@pytest.fixture
def group(tmp_path):
    """Workdirs of untrained models, the third with another tokenizer."""
    paths = []
    for name, memory_length, tokenizer in (
        ("memory", 7, ByteTokenizer()),
        ("none", 0, ByteTokenizer()),
        ("other", 0, CharacterTokenizer(map(chr, range(256)))),
    ):
        model = TransformerXLCausalLM.from_preset(
            "quickstart", num_layers=1, hidden_dim=8, intermediate_dim=4,
            num_heads=2, head_dim=3, memory_length=memory_length,
        )  # fmt: skip
        paths.append(tmp_path / name)
        flags = {"segment_length": 5}
        save_run(paths[-1], model, 3, tokenizer, flags=flags)
    return paths
