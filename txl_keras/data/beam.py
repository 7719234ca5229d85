"""Prepares text on the workers of Apache Beam.

A step is a function of one section of the text. Its result is a JSON file with
the number of the section in its name, which is written under another name and
renamed once it is complete. Work that Beam repeats therefore gives the same
file again, and a run that was killed continues where it stopped.
"""

import contextlib
import dataclasses
import functools
import io
import json
import os
import shlex
import signal
import threading

import tensorflow as tf

from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.data.corpora.files import write_text
from txl_keras.data.token_files import encode_block
from txl_keras.data.token_files import token_dtype
from txl_keras.data.token_files import write_shard
from txl_keras.data.tokenizers.building import load_tokenizer
from txl_keras.data.tokenizers.building import save_tokenizer


@dataclasses.dataclass(frozen=True)
class Beam:
    """Runs the steps of a preparation on Apache Beam.

    Args:
        runner: String, the name of a runner of Beam, such as `"DirectRunner"`.
        options: String, options of Beam as on a command line.
        folder: Optional string. Where results of steps are written, in files
            that all workers can reach.

    Raises:
        ImportError: If Beam is not installed.
    """

    runner: str
    options: str = ""
    folder: str = None

    def __post_init__(self):
        self._make_pipeline()

    def map(self, step, function, items):
        """Returns an iterator over `function(item)`, JSON values, in order.

        The files with the results have the name `step`. A ValueError of the
        function is raised here: Beam would repeat the work.
        """
        done = {*tf.io.gfile.listdir(self.folder)}
        names = [f"{step}-{number}.json" for number in range(len(items))]
        paths = [os.path.join(self.folder, name) for name in names]
        tasks = zip(items, paths, names, strict=True)
        left = [(item, path) for item, path, name in tasks if name not in done]
        if left:
            beam = _import_beam()
            task = functools.partial(_write_result, function)
            try:
                with (
                    _errors_of_worker_processes(),
                    self._make_pipeline() as pipeline,
                ):
                    # Items go to workers one by one.
                    tasks = pipeline | beam.Create(left) | beam.Reshuffle()
                    _ = tasks | beam.Map(task)
            except Exception as error:
                raise RuntimeError(
                    f"Apache Beam failed: {type(error).__name__}: {error}\n"
                    "What was finished is kept: run the same command again."
                ) from error
        return map(_read_result, paths)

    def write_shards(self, corpus, split, tokenizer, paths):
        """Encodes sections of a split to files; returns what they have."""
        tokenizer_path = os.path.join(self.folder, "tokenizer.json")
        save_tokenizer(tokenizer, tokenizer_path)
        items = [*zip(corpus.text(split).sections(), paths, strict=True)]
        source = f"The {split} split of {corpus.name}"
        encode = functools.partial(_encode_section, tokenizer_path, source)
        return self.map(f"encode-{split}", encode, items)

    def _make_pipeline(self):
        beam = _import_beam()
        name = self.runner
        if name.lower() == "directrunner":
            name = "FnApiRunner"  # the other one is downloaded when it is used
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed):
                options = beam.options.pipeline_options.PipelineOptions(
                    shlex.split(self.options)
                )
                options.get_all_options()
                return beam.Pipeline(name, options)
        except (SystemExit, ValueError, AttributeError, ImportError) as error:
            reason = printed.getvalue().strip().split("error: ")[-1] or error
            raise ValueError(
                "`beam_runner` must be a runner of Apache Beam whose extras "
                "are installed, and `beam_options` options of Apache Beam, "
                "such as --beam_options='--direct_num_workers=2'. Received: "
                f"--beam_runner={self.runner}, "
                f"--beam_options={self.options!r} ({reason})"
            ) from error


@contextlib.contextmanager
def _errors_of_worker_processes():
    """Raises if a process of the DirectRunner dies, for which Beam waits."""
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield  # no other thread can be interrupted
        return
    show, errors = threading.excepthook, []

    def interrupt(arguments):
        show(arguments)
        # The thread in which Beam waits for the end of a process.
        is_wait = arguments.thread and arguments.thread.name == "run_worker"
        if is_wait and not errors:
            errors.append(arguments.exc_value)
            signal.pthread_kill(main.ident, signal.SIGUSR1)

    def fail(*_):
        raise errors[0]

    handler = signal.signal(signal.SIGUSR1, fail)
    threading.excepthook = interrupt
    try:
        yield
    finally:
        threading.excepthook = show
        signal.signal(signal.SIGUSR1, handler)


def _import_beam():
    try:
        import apache_beam
        import apache_beam.options.pipeline_options
    except ImportError as error:
        raise ImportError(
            "`beam_runner` needs Apache Beam, which cannot be imported: "
            f'{error}. Install the extra: `pip install -e ".[beam]"`, or '
            "`pip install apache-beam`."
        ) from error
    return apache_beam


def _write_result(function, item_and_path):
    item, path = item_and_path
    try:
        result = {"value": function(item)}
    except ValueError as error:
        result = {"refused": str(error)}
    write_text(json.dumps(result), path)


def _read_result(path):
    with tf.io.gfile.GFile(path, "rb") as file:
        result = json.loads(file.read())
    if "refused" in result:
        raise ValueError(result["refused"])
    return result["value"]


_load_tokenizer = functools.lru_cache(1)(load_tokenizer)


def _encode_section(tokenizer_path, source, section_and_path):
    """Writes the ids of a section; returns what `write_shard` does."""
    section, path = section_and_path
    tokenizer = _load_tokenizer(tokenizer_path)
    dtype = token_dtype(tokenizer)
    encode = functools.partial(encode_block, tokenizer, source)
    work = os.path.dirname(tokenizer_path)
    with renamed_when_complete(path, work) as temporary:
        shard = write_shard(map(encode, section.blocks()), dtype, temporary)
    return shard | {"documents": shard["documents"].tolist()}
