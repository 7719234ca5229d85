"""The `--compile_only` mode: compiles the steps of a run for a TPU slice."""

import datetime
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
from concurrent import futures

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.data import Segments
from txl_keras.data.corpora.files import check_can_write
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import use
from txl_keras.models import presets
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import training_flags
from txl_keras.serving import Generator
from txl_keras.tpu.compiling import check_compiler
from txl_keras.tpu.compiling import compile_hlo
from txl_keras.tpu.compiling import lower
from txl_keras.tpu.compiling import versions
from txl_keras.tpu.report import Step
from txl_keras.tpu.report import describe
from txl_keras.tpu.report import report
from txl_keras.tpu.slices import TYPES
from txl_keras.training.memory_estimate import estimate_bytes
from txl_keras.training.stopping import TERMINATION
from txl_keras.training.stopping import set_handlers
from txl_keras.training.utilization import model_flops
from txl_keras.workdir import Workdir
from txl_keras.workdir import write_json

FLAGS = flags.FLAGS
STEPS = ("train", "evaluation", "generation")


class Compilation(options.Options):
    """Holds options of `--compile_only`.

    Device options:
    tpu_type: Type of the TPU slice, as gcloud calls it. The run is checked
        against it, and --compile_only compiles for it.
    compile_only: Compile the steps of the run for --tpu_type and report their
        time and memory, instead of training. Needs neither a TPU,
        nor text, nor --workdir.
    compile_steps: The steps that --compile_only compiles.
    """

    tpu_type: options.one_of(TYPES) = None
    compile_only: bool = False
    compile_steps: options.several_of(STEPS) = list(STEPS)


def compile_run():
    """Compiles the steps of the run and returns whether all fit in memory."""
    # The report is written to WORKDIR/tpu_compile.json or, without a workdir,
    # to ./tpu_compile_PRESET_TYPE.json.
    is_missing = FLAGS.tpu_type is None
    expected = "`tpu_type` must be given with --compile_only."
    running.check_flags((is_missing, expected, "tpu_type"))
    slice_ = TYPES[FLAGS.tpu_type]
    replica_batch_size(FLAGS.batch_size, slice_)
    replica_batch_size(FLAGS.eval_batch_size, slice_, "eval_batch_size")
    check_compiler()
    path = _output()
    # So that the temporary folder is removed.
    set_handlers(TERMINATION, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        # Tracing and lowering takes 6 GB for 24 layers, which TensorFlow frees
        # only when its process ends, and the compiler needs twice that.
        facts, steps = _in_a_child(_lower_steps, folder)
        for step in steps:
            hlo = pathlib.Path(folder, step.name).read_bytes()
            answer = compile_hlo(hlo, slice_, step.num_replicas)
            facts["steps"].append(report(step, slice_, answer))
            print(describe(facts["steps"][-1]), flush=True)
            write_json(facts, path)
    print(f"Written to {path}")
    return all(step["fits"] for step in facts["steps"])


def _in_a_child(function, *arguments):
    """Calls a function in a child process with the flags of this process."""
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, context, _begin_child) as executor:
        try:
            return executor.submit(function, *arguments).result()
        except futures.process.BrokenProcessPool:
            raise RuntimeError(
                "The child process ended. It printed the reason above, or the "
                "system killed it because memory ran out."
            ) from None
        except BaseException:
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _begin_child():
    # Ctrl-C reaches both processes; the parent kills the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running.begin()
    # The flags are defined, because spawning has imported the script.
    FLAGS(sys.argv)


def _lower_steps(folder):
    """Lowers each step to a file in `folder`; returns facts and `Step`s."""
    keras.utils.set_random_seed(FLAGS.seed)
    slice_ = TYPES[FLAGS.tpu_type]
    with tf.device("CPU:0"), use(Target("tpu")):  # the host that lowers
        model = _build_model()
        model.backbone.check_positions(FLAGS.segment_length)
        run = _Run(model, slice_)
    facts = {
        "preset": FLAGS.preset,
        "vocabulary_size": model.backbone.vocabulary_size,
        "tpu_type": slice_.name,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "steps": [],
    }
    print(_describe(facts, model), flush=True)
    steps = []
    for name in dict.fromkeys(FLAGS.compile_steps):
        step, function, arguments = getattr(run, name)()
        hlo = lower(function, arguments, step.num_replicas)
        pathlib.Path(folder, name).write_bytes(hlo)
        steps.append(step)
    return facts, steps


def _output():
    """Returns the path to write, checked before minutes of compiling."""
    workdir = Workdir(FLAGS.workdir or ".")
    check_can_write("workdir", workdir.path)
    if FLAGS.workdir:
        tf.io.gfile.makedirs(workdir.path)
        return workdir.file("tpu_compile.json")
    name = f"tpu_compile_{FLAGS.preset}_{FLAGS.tpu_type}.json"
    return os.path.relpath(workdir.file(name))


def _build_model():
    for name, is_wrong, reason in (
        ("varlen", FLAGS.varlen, "it compiles segments of one length"),
        ("initialize_from", FLAGS.initialize_from, "it reads no run"),
        ("cutoffs", FLAGS.cutoffs == ["auto"], "it reads no text to count"),
        (
            "backbone",
            FLAGS.backbone == "lstm",
            "the gradient of an LSTM's loop uses lists whose size is not "
            "static",
        ),
    ):
        wrong = (
            f"`{name}` cannot have this value with --compile_only: {reason}."
        )
        running.check_flags((is_wrong, wrong, name))
    return model_flags.build_model(
        FLAGS.vocabulary_size
        or presets.PRESETS[FLAGS.preset]["vocabulary_size"],
        None,
        training_flags.dtype_policy(),
    )


class _Run:
    """Holds one replica of a run; `lower` simulates the others."""

    # The method of each step returns a `Step` and the function and arguments to
    # lower.

    def __init__(self, model, slice_):
        self._model = model
        self._slice = slice_
        self._rows = replica_batch_size(FLAGS.batch_size, slice_)
        self._eval_rows = replica_batch_size(FLAGS.eval_batch_size, slice_)
        self._segments = _segments(self._rows)
        strategy = tf.distribute.get_strategy()
        self._trainer = training_flags.build_trainer(
            model,
            training_flags.build_optimizer()[0],
            strategy,
            self._rows,
            self._segments,
        )
        self._evaluator = Evaluator(
            model, strategy, self._eval_rows, FLAGS.segment_length
        )
        self._parts = estimate_bytes(
            model,
            self._trainer.optimizer,
            self._rows,
            FLAGS.segment_length,
            FLAGS.accumulate_steps,
        )
        del self._parts["activations"]

    def train(self):
        step = self._step(
            name="train",
            rows=self._rows,
            model_flops=model_flops(
                self._model, self._rows, FLAGS.segment_length, training=True
            ),
            accumulate_steps=FLAGS.accumulate_steps,
            parts=self._parts,
            beside=self._evaluator.num_bytes,
        )
        return step, self._trainer.replica_step, _arguments(self._segments)

    def evaluation(self):
        memory = self._evaluator.num_bytes
        step = self._step(
            name="evaluation",
            rows=self._eval_rows,
            parts={"weights": self._parts["weights"], "memory": memory},
            beside=self._parts["optimizer"] + self._parts["memory"],
        )
        arguments = _arguments(_segments(self._eval_rows))
        return step, self._evaluator.replica_step, arguments

    def generation(self):
        # Kept alive here, because its step does not reference it.
        backbone = self._model.backbone
        length = backbone.memory_length or backbone.max_segment_length or 0
        self._generator = Generator(self._model, memory_length=length)
        step = self._step(
            name="generation",
            rows=1,
            segment_length=1,
            num_replicas=1,
            parts={"weights": self._parts["weights"]},
        )
        return step, *self._generator.replica_step()

    def _step(self, **facts):
        defaults = {
            "segment_length": FLAGS.segment_length,
            "memory_length": self._model.backbone.memory_length,
            "num_replicas": self._slice.replicas,
            "precision": FLAGS.precision,
        }
        return Step(**defaults | facts)


def _segments(rows):
    """Makes segments of zeros: only their shapes matter."""
    return Segments(
        np.zeros(4 * rows * (FLAGS.segment_length + 1), "uint8"),
        rows,
        FLAGS.segment_length,
        drop_remainder=True,
    )


def _arguments(segments):
    """Returns a batch and a request to stop, for the step of a replica."""
    return tf.nest.map_structure(tf.constant, (segments.batch(0), 0.0))


def _describe(facts, model):
    cutoffs = model.get_config()["backbone"]["config"]["cutoffs"]
    compilers = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    source = "--vocabulary_size" if FLAGS.vocabulary_size else "the preset"
    return (
        f"{FLAGS.preset}, a vocabulary of {facts['vocabulary_size']:,}"
        + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
        + f" from {source} (a run uses that of its text); "
        f"{model.count_params():,} weights, {FLAGS.optimizer}\n"
        f"Compiled, not run, by {compilers}"
    )
