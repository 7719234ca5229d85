"""The `--compile_only` mode: compiles the training step for a TPU slice."""

import datetime
import multiprocessing
import pathlib
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
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import training_flags
from txl_keras.scripts.data_flags import check_writable
from txl_keras.scripts.model_flags import build_model
from txl_keras.scripts.options import FLAGS
from txl_keras.tpu.compiling import check_packages
from txl_keras.tpu.compiling import compile_hlo
from txl_keras.tpu.compiling import lower
from txl_keras.tpu.compiling import versions
from txl_keras.tpu.report import describe
from txl_keras.tpu.report import report
from txl_keras.tpu.slices import TYPES
from txl_keras.training.utilization import model_flops
from txl_keras.training.utilization import training_bytes
from txl_keras.workdir import Workdir
from txl_keras.workdir import write_json


def compile_run():
    """Compiles the step of the run and returns whether it fits in memory."""
    # The report is written to WORKDIR/tpu_compile.json or, without a workdir,
    # to ./tpu_compile_PRESET_TYPE.json.
    expected = "`tpu_type` must be given with --compile_only."
    options.refuse(FLAGS.tpu_type is None, expected)
    expected = "`initialize_from` cannot be given with --compile_only."
    options.refuse(FLAGS.initialize_from, expected)
    options.refuse(
        FLAGS.backbone == "lstm",
        "`backbone` cannot be lstm with --compile_only: the gradient of an "
        "LSTM's loop uses lists whose size is not static.",
    )
    check_packages()
    slice_ = TYPES[FLAGS.tpu_type]
    rows = [
        replica_batch_size(FLAGS[name].value, slice_, name)
        for name in ("batch_size", "eval_batch_size")
    ]
    name = "tpu_compile.json"
    if not FLAGS.workdir:
        name = f"tpu_compile_{FLAGS.preset}_{FLAGS.tpu_type}.json"
    path = Workdir(FLAGS.workdir or ".").file(name)
    check_writable("workdir", path)  # before minutes of compiling
    with tempfile.TemporaryDirectory() as folder:
        hlo = pathlib.Path(folder, "step.hlo")
        # Tracing and lowering takes 6 GB for 24 layers, and the compiler needs
        # twice as much. TensorFlow frees memory only when its process ends.
        context = multiprocessing.get_context("spawn")
        with futures.ProcessPoolExecutor(1, context, _begin_child) as executor:
            facts = executor.submit(_lower_step, hlo, *rows).result()
        answer = compile_hlo(hlo.read_bytes(), slice_, facts["replicas"])
    facts = report(facts, slice_, answer)
    write_json(facts, path)
    print(f"{describe(facts)}\nWritten to {path}")
    return facts["fits"]


def _begin_child():
    running.begin()
    # The flags are defined, because spawning has imported the script.
    FLAGS(sys.argv)


def _lower_step(path, rows, eval_rows):
    """Writes the HLO of the training step; returns facts about it."""
    # One replica of a run is built; `lower` simulates the others.
    keras.utils.set_random_seed(FLAGS.seed)
    slice_, strategy = TYPES[FLAGS.tpu_type], tf.distribute.get_strategy()
    length = FLAGS.segment_length
    with tf.device("CPU:0"), use(Target("tpu")):  # the host that lowers
        policy = training_flags.dtype_policy()
        trainer = training_flags.build_trainer(
            lambda: build_model(FLAGS.vocabulary_size, None, policy),
            strategy,
            batch_size=rows,
        )
        model = trainer.model
        parts = training_bytes(
            model, trainer.optimizer, rows, FLAGS.accumulate_steps
        )
        evaluator = Evaluator(model, strategy, eval_rows, length)
    replicas = slice_.num_replicas_in_sync
    # Only shapes matter.
    tokens = np.zeros(4 * rows * (length + 1), "uint8")
    segments = Segments(tokens, rows, length, drop_remainder=True)
    arguments = tf.nest.map_structure(tf.constant, (segments.batch(0),))
    path.write_bytes(lower(trainer.replica_step, arguments, replicas))
    return {
        "preset": FLAGS.preset,
        # A run uses the dtype of its text.
        "vocabulary_size": model.backbone.vocabulary_size,
        "tpu_type": FLAGS.tpu_type,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "replicas": replicas,
        # For one replica:
        "rows": rows,
        "segment_length": length,
        "memory_length": model.backbone.memory_length,
        "precision": FLAGS.precision,
        "accumulate_steps": FLAGS.accumulate_steps,
        "model_flops": model_flops(model, rows, length, training=True),
        **parts,
        "beside": evaluator.num_bytes,  # on the chip, outside of the step
    }
