"""`--compile_only`: the steps of a run, compiled for a TPU slice."""

import datetime
import json
import os

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.data import Segments
from txl_keras.data.corpora.files import write_text
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.models import presets
from txl_keras.scripts import model_flags
from txl_keras.scripts import training_flags
from txl_keras.serving import Generator
from txl_keras.training.compile_report import Step
from txl_keras.training.compile_report import describe
from txl_keras.training.compile_report import report
from txl_keras.training.memory_estimate import estimate_bytes
from txl_keras.training.tpu_compile import VERSIONS
from txl_keras.training.tpu_compile import check_compiler
from txl_keras.training.tpu_compile import compile_hlo
from txl_keras.training.tpu_compile import lower
from txl_keras.training.tpu_types import names
from txl_keras.training.tpu_types import rows_of_replica
from txl_keras.training.tpu_types import tpu_type
from txl_keras.training.trainer import Trainer
from txl_keras.training.utilization import model_flops
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS
STEPS = ("train", "evaluation", "generation")


def define_compile_flags():
    """Defines the flags of a run that is only compiled."""
    flags.DEFINE_string(
        "tpu_type", None,
        f"What the slice is, as gcloud calls it: {', '.join(names())}.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "compile_only", False,
        "Compile the steps for --tpu_type, without a TPU or text, and say "
        "what they take.",
    )  # fmt: skip
    flags.DEFINE_multi_enum(
        "compile_steps", list(STEPS), STEPS, "Which, with --compile_only."
    )


def compile_run():
    """Compiles the steps of the run that the flags name.

    Prints a report of each and stores all: in the workdir, tpu_compile.json,
    or, without one, here, tpu_compile_PRESET_TYPE.json.

    Returns:
        Boolean, whether all fit.

    Raises:
        ValueError: If the flags are not those of a run on such a slice.
        RuntimeError, ImportError: If there is no compiler, or it fails.
    """
    slice_ = tpu_type(FLAGS.tpu_type)
    rows_of_replica(FLAGS.batch_size, slice_)
    rows_of_replica(FLAGS.eval_batch_size, slice_, "eval_batch_size")
    check_compiler()
    path = _output()
    keras.utils.set_random_seed(FLAGS.seed)
    with tf.device("CPU:0"):  # where it is lowered
        model = _build_model()
        steps = _steps(model, slice_)
    facts = {
        "preset": FLAGS.preset,
        "vocabulary_size": model.backbone.vocabulary_size,
        "tpu_type": slice_.name,
        "date": datetime.date.today().isoformat(),
        "versions": {
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            **VERSIONS,
        },
        "steps": [],
    }
    print(_describe(facts, model), flush=True)
    for name in FLAGS.compile_steps:
        step, function, arguments = steps[name]()
        hlo = lower(function, arguments, step.num_replicas)
        answer = compile_hlo(hlo, slice_, step.num_replicas)
        facts["steps"].append(report(step, slice_, answer))
        print(describe(facts["steps"][-1]), flush=True)
        write_text(json.dumps(facts, indent=2) + "\n", path)
    print(f"In {path}")
    return all(step["fits"] for step in facts["steps"])


def _output():
    """Where to write, which is seen now and not after minutes."""
    workdir = Workdir(FLAGS.workdir or ".")
    workdir.check_writable()
    if FLAGS.workdir:
        tf.io.gfile.makedirs(workdir.path)
        return workdir.file("tpu_compile.json")
    name = f"tpu_compile_{FLAGS.preset}_{FLAGS.tpu_type}.json"
    return os.path.relpath(workdir.file(name))


def _build_model():
    if FLAGS.initialize_from or FLAGS.cutoffs == ["auto"]:
        raise ValueError(
            "`compile_only` reads no run and no text, so `initialize_from` and "
            "cutoffs=auto have no meaning: name the sizes. Received: "
            f"initialize_from={FLAGS.initialize_from}, cutoffs={FLAGS.cutoffs}"
        )
    return model_flags.build_model(
        FLAGS.vocabulary_size
        or presets.preset_config(FLAGS.preset)["vocabulary_size"],
        None,
        training_flags.dtype_policy(),
    )


def _steps(model, slice_):
    """Functions that return a step, and what to lower, by name."""
    # One replica, whose neighbours `lower` makes up.
    strategy = tf.distribute.get_strategy()
    rows = rows_of_replica(FLAGS.batch_size, slice_)
    eval_rows = rows_of_replica(FLAGS.eval_batch_size, slice_)
    length = FLAGS.segment_length
    segments = _segments(rows)
    trainer = Trainer(
        model,
        training_flags.build_optimizer(),
        strategy,
        rows,
        clip_norm=FLAGS.clip_norm or None,
        seed=FLAGS.seed,
        segment_lengths=segments.segment_lengths,
        accumulate_steps=FLAGS.accumulate_steps,
    )
    evaluator = Evaluator(model, strategy, eval_rows, length)
    parts = estimate_bytes(
        model, trainer.optimizer, rows, length, FLAGS.accumulate_steps
    )
    del parts["activations"]
    of_all = {
        "segment_length": length,
        "memory_length": model.backbone.memory_length,
        "num_replicas": slice_.replicas,
        "precision": FLAGS.precision,
    }
    weights = {"weights": parts["weights"]}

    def train():
        step = Step(
            name="train",
            rows=rows,
            model_flops=model_flops(model, rows, length, training=True),
            accumulate_steps=FLAGS.accumulate_steps,
            parts=parts,
            beside=evaluator.num_bytes,
            **of_all,
        )
        return step, trainer.replica_step, (_batch(segments), tf.constant(0.0))

    def evaluation():
        step = Step(
            name="evaluation",
            rows=eval_rows,
            parts={**weights, "memory": evaluator.num_bytes},
            beside=parts["optimizer"] + parts["memory"],
            **of_all,
        )
        batch = _batch(_segments(eval_rows, varlen=False))
        return step, evaluator.replica_step, (batch, tf.constant(0.0))

    def generation():
        alone = {"segment_length": 1, "num_replicas": 1}
        step = Step("generation", rows=1, parts=weights, **of_all | alone)
        return step, *Generator(model).replica_step()

    return {"train": train, "evaluation": evaluation, "generation": generation}


def _segments(rows, varlen=None):
    """Of a text of zeros, as only their shapes count."""
    return Segments(
        np.zeros(4 * rows * (FLAGS.segment_length + 1), "uint8"),
        rows,
        FLAGS.segment_length,
        drop_remainder=True,
        varlen=FLAGS.varlen if varlen is None else varlen,
    )


def _batch(segments):
    return {
        name: tf.constant(value) for name, value in segments.batch(0).items()
    }


def _describe(facts, model):
    cutoffs = model.get_config()["backbone"]["config"]["cutoffs"]
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    source = "--vocabulary_size" if FLAGS.vocabulary_size else "the preset"
    return (
        f"{FLAGS.preset}, a vocabulary of {facts['vocabulary_size']:,}"
        + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
        + f", by {source} (a run has that of its text); "
        f"{model.count_params():,} weights, {FLAGS.optimizer}\n"
        f"Compiled, not run, by {versions}"
    )
