"""Prepares text on the workers of Apache Beam, with `--beam_runner`.

See docs/large_corpora.md.
"""

import functools
import json
import os
import shlex
import uuid

import tensorflow as tf

from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import remove_folder
from txl_keras.data.corpora.files import write_text
from txl_keras.extending import register
from txl_keras.lazy import import_extra
from txl_keras.scripts import options


class BeamMap:
    """Calls a function on the workers of Apache Beam, as `map` does."""

    # All workers must reach the `folder`, to which they write their results.

    def __init__(self, runner: str, options: str, folder: str):
        self._runner = runner
        self._options = options
        self._folder = folder
        self._make_pipeline()

    def __call__(self, function, items):
        """Yields `function(item)`, JSON values, in the order of the items."""
        # A ValueError of the function is raised here: Beam would repeat it.
        folder = os.path.join(self._folder, f"beam-{uuid.uuid4().hex}")
        tf.io.gfile.makedirs(folder)
        try:
            paths = [f"{folder}/{i}.json" for i in range(len(items))]
            self._run(function, [*zip(items, paths, strict=True)])
            yield from map(_read_result, paths)
        finally:
            remove_folder(folder)

    def _run(self, function, tasks):
        beam = import_extra("apache_beam")
        task = functools.partial(_write_result, function)
        try:
            with self._make_pipeline() as pipeline:
                # Items go to workers one by one.
                items = pipeline | beam.Create(tasks) | beam.Reshuffle()
                _ = items | beam.Map(task)
        except Exception as error:
            raise RuntimeError(
                f"Apache Beam failed: {type(error).__name__}: {error}\n"
                "Finished files of ids are kept: run the same command again."
            ) from error

    def _make_pipeline(self):
        # Errors of Beam name its runners and options.
        beam = import_extra("apache_beam")
        pipeline_options = import_extra("apache_beam.options.pipeline_options")
        name = self._runner
        if name.lower() == "directrunner":
            name = "FnApiRunner"  # the other one is downloaded when it is used
        found = pipeline_options.PipelineOptions(shlex.split(self._options))
        found.get_all_options()
        return beam.Pipeline(name, found)


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


class Beam(options.Options):
    """Holds the options of this extension.

    Data options:
    beam_runner: Runner of Apache Beam that reads and encodes the text, such as
        DirectRunner, DataflowRunner or FlinkRunner. The ids do not depend on
        it. Default: this machine encodes the text, without Beam.
    beam_options: Options of Apache Beam and of --beam_runner, such as
        '--direct_num_workers=4 --direct_running_mode=multi_processing'.
    """

    beam_runner: str = None
    beam_options: str = None

    @classmethod
    def make(cls, folder):
        """Returns the `BeamMap` of the flags, or None."""
        runner, given = cls.values().values()
        if runner is None:
            options.refuse(
                given is not None,
                "`beam_options` needs `beam_runner`, such as "
                "--beam_runner=DirectRunner.",
            )
            return None
        options.refuse(
            "dataflow" in runner.lower() and not is_remote(folder),
            "`data_dir` must be in a bucket for a `beam_runner` whose workers "
            "are other machines.",
        )
        return BeamMap(runner, given or "", folder)


register("section_map", beam=Beam)
