"""The `--compile_only` mode: compiles the steps of a run for a TPU slice."""

import datetime
import multiprocessing
import pathlib
import signal
import sys
import tempfile
from concurrent import futures

import keras
import numpy as np
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import use
from txl_keras.models.generation.generator import Generator
from txl_keras.samplers import Sampler
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import training_flags
from txl_keras.scripts.data_flags import check_writable
from txl_keras.scripts.options import FLAGS
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
    expected = "`tpu_type` must be given with --compile_only."
    options.refuse(FLAGS.tpu_type is None, expected)
    slice_ = TYPES[FLAGS.tpu_type]
    rows = [
        replica_batch_size(FLAGS[name].value, slice_, name)
        for name in ("batch_size", "eval_batch_size")
    ]
    check_compiler()
    name = "tpu_compile.json"
    if not FLAGS.workdir:
        name = f"tpu_compile_{FLAGS.preset}_{FLAGS.tpu_type}.json"
    path = Workdir(FLAGS.workdir or ".").file(name)
    check_writable("workdir", path)  # before minutes of compiling
    # So that the temporary folder is removed.
    set_handlers(TERMINATION, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        # Tracing and lowering takes 6 GB for 24 layers, which TensorFlow frees
        # only when its process ends, and the compiler needs twice that.
        facts, steps = _in_a_child(_lower_steps, folder, *rows)
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


def _lower_steps(folder, rows, eval_rows):
    """Lowers each step to a file in `folder`; returns facts and `Step`s."""
    # One replica of a run is built; `lower` simulates the others.
    keras.utils.set_random_seed(FLAGS.seed)
    slice_, strategy = TYPES[FLAGS.tpu_type], tf.distribute.get_strategy()
    length, segments = FLAGS.segment_length, _segments(rows)
    with tf.device("CPU:0"), use(Target("tpu")):  # the host that lowers
        trainer = training_flags.build_trainer(
            _build_model, strategy, batch_size=rows
        )
        model, backbone = trainer.model, trainer.model.backbone
        evaluator = Evaluator(model, strategy, eval_rows, length)
        parts = estimate_bytes(
            model, trainer.optimizer, rows, length, FLAGS.accumulate_steps
        )
    del parts["activations"]
    facts = {
        "preset": FLAGS.preset,
        "vocabulary_size": backbone.vocabulary_size,
        "tpu_type": slice_.name,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "steps": [],
    }
    cutoffs = model.get_config()["backbone"]["config"]["cutoffs"]
    source = "--vocabulary_size" if FLAGS.vocabulary_size else "the preset"
    print(
        f"{FLAGS.preset}, a vocabulary of {backbone.vocabulary_size:,}"
        + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
        + f" from {source} (a run uses that of its text); "
        f"{model.count_params():,} weights, {FLAGS.optimizer}\n"
        "Compiled, not run, by "
        + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()),
        flush=True,
    )
    common = {
        "segment_length": length,
        "memory_length": backbone.memory_length,
        "num_replicas": slice_.replicas,
        "precision": FLAGS.precision,
    }
    # Each with the function and the arguments to lower.
    steps = {
        "train": (
            Step(
                **common,
                name="train",
                rows=rows,
                model_flops=model_flops(model, rows, length, training=True),
                accumulate_steps=FLAGS.accumulate_steps,
                parts=parts,
                beside=evaluator.num_bytes,
            ),
            trainer.replica_step,
            _arguments(segments),
        ),
        "evaluation": (
            Step(
                **common,
                name="evaluation",
                rows=eval_rows,
                parts={
                    "weights": parts["weights"],
                    "memory": evaluator.num_bytes,
                },
                beside=parts["optimizer"] + parts["memory"],
            ),
            evaluator.replica_step,
            _arguments(_segments(eval_rows)),
        ),
    }
    if "generation" in FLAGS.compile_steps:
        most = backbone.memory_length or backbone.max_segment_length or 0
        generator = Generator(model, Sampler(), most)
        common |= {"segment_length": 1, "num_replicas": 1}
        weights = {"weights": parts["weights"]}
        step = Step(**common, name="generation", rows=1, parts=weights)
        steps["generation"] = step, *generator.replica_step()
    lowered = []
    for name in dict.fromkeys(FLAGS.compile_steps):
        step, function, arguments = steps[name]
        hlo = lower(function, arguments, step.num_replicas)
        pathlib.Path(folder, name).write_bytes(hlo)
        lowered.append(step)
    return facts, lowered


def _build_model():
    for name, is_wrong, reason in (
        ("initialize_from", FLAGS.initialize_from, "it reads no run"),
        (
            "backbone",
            FLAGS.backbone == "lstm",
            "the gradient of an LSTM's loop uses lists whose size is not "
            "static",
        ),
    ):
        expected = f"`{name}` cannot have this value with --compile_only"
        options.refuse(is_wrong, f"{expected}: {reason}.")
    model = model_flags.build_model(
        FLAGS.vocabulary_size, None, training_flags.dtype_policy()
    )
    model.backbone.check_positions(FLAGS.segment_length)
    return model


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
