"""Steps as a TPU would have them: traced, compiled, reported.

What compiles needs `pip install "txl_keras[tpu_compile]"`. Nothing runs.
"""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import use
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.optimizers import build_optimizer
from txl_keras.tpu import compiling
from txl_keras.tpu.compiling import OneOfManyReplicas
from txl_keras.tpu.compiling import check_packages
from txl_keras.tpu.compiling import compile_hlo
from txl_keras.tpu.compiling import lower
from txl_keras.tpu.report import bytes_moved
from txl_keras.tpu.report import describe
from txl_keras.tpu.report import report
from txl_keras.tpu.slices import TYPES
from txl_keras.training.trainer import Trainer
from txl_keras.training.utilization import training_bytes

ROOT = pathlib.Path(__file__).parents[2]
STRATEGY = tf.distribute.get_strategy()
try:
    check_packages()
    MISSING = ""
except ImportError as error:
    MISSING = str(error)
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=MISSING)
B, T, GIB = 6, 5, 2**30


def make_model(dtype="mixed_bfloat16", make=TransformerXLBackbone, **overrides):
    config = {
        "vocabulary_size": 40,
        "num_layers": 1,
        "num_heads": 2,
        "hidden_dim": 12,
        "intermediate_dim": 20,
        "memory_length": 7,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        **overrides,
    }
    backbone = make(dtype=dtype, **config)
    return TransformerXLCausalLM(backbone, dtype=dtype)


def batch_of(length=T):
    tokens = np.zeros(4 * B * (length + 1), "int32")
    batch = Segments(tokens, B, length, drop_remainder=True).batch(0)
    return {name: tf.constant(value) for name, value in batch.items()}


def train_step(model, optimizer="sgd", length=T, **kwargs):
    optimizer = build_optimizer(optimizer, 0.01)
    with use(Target("tpu")):
        trainer = Trainer(
            model, optimizer, STRATEGY, B, clip_norm=0.25, **kwargs
        )
    return trainer.replica_step, (batch_of(length),)


def evaluation_step(model):
    evaluator = Evaluator(model, STRATEGY, B, T)
    return evaluator.replica_step, (batch_of(),)


# --- What is traced


SHAW = {"attention_type": "shaw", "max_positions": 12}
ABSOLUTE = {
    "attention_type": "al_rfou",
    "max_positions": 12,
    "memory_length": 0,
}
CLUSTERS = {"cutoffs": [10, 20], "div_val": 2, "embedding_dim": 12}
# Options that do not depend on each other share a step.
STEPS = {
    "relative, clusters, adam": (
        train_step, CLUSTERS, {"optimizer": "adam"}
    ),
    "shaw, float16, lamb": (
        train_step, {"dtype": "mixed_float16", **SHAW}, {"optimizer": "lamb"}
    ),
    "absolute, pre-norm, pieces": (
        train_step, {"normalize_first": True, **ABSOLUTE},
        {"accumulate_steps": 2},
    ),
    "evaluation": (evaluation_step, CLUSTERS, {}),
    "evaluation without memory": (evaluation_step, {"memory_length": 0}, {}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("make_step", "config", "options"), STEPS.values(), ids=STEPS
)
def test_steps_are_static(make_step, config, options):
    assert not not_static(*make_step(make_model(**config), **options))


def not_static(function, arguments):
    """Returns what a TPU cannot compile, although XLA for the CPU can.

    These are shapes that depend on values, 64-bit floats, and random numbers
    from a state, which no checkpoint holds. XLA itself refuses strings and
    calls of the host.
    """
    step = tf.function(lambda *args: function(*args), jit_compile=True)
    with tf.device("CPU:0"), OneOfManyReplicas(4):
        compiler_ir = step.experimental_get_compiler_ir(*arguments)
        text = compiler_ir(stage="hlo", platform_name="CPU")
    return re.findall(r"\w+\[[^\]]*<=.*?\]|f64\[|c128\[| rng\b", text)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)),
        lambda x: tf.cast(tf.cast(x, tf.float64) / 3, tf.float32),
        lambda x: x + tf.random.uniform(x.shape),
        lambda x: x + tf.random.get_global_generator().uniform(x.shape),
    ],
    ids=["shape", "dtype", "random", "generator"],
)
def test_what_is_not_static_is_found(function):
    assert not_static(function, [tf.ones((3, 4))])


# --- Slices


def test_replicas_are_those_of_tpu_strategy():
    replicas = {name: TYPES[name].num_replicas_in_sync for name in TYPES}
    # A core of v2 and v3, where the name counts cores, too. A chip of the
    # others; v4 and v5p count cores in the name, v5e and v6e chips.
    for name, number in replicas.items():
        generation, count = name.split("-")
        both = 2 if generation in ("v4", "v5p") else 1
        assert number == int(count) // both, name


# --- The compiler's text

HLO = """HloModule step

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], bf16[3,5])) -> (s32[], bf16[3,5]) {
  %p = (s32[], bf16[3,5]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[3,5]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %y = bf16[3,5]{1,0:T(8,128)(2,1)} negate(%x)
  ROOT %t = (s32[], bf16[3,5]{1,0:T(8,128)(2,1)}) tuple(%i, %y)
}

ENTRY %main (q: bf16[3,5], g: f32[7], h: f32[2]) -> f32[7] {
  %q = bf16[3,5]{1,0:T(8,128)(2,1)} parameter(0)
  %g = f32[7]{0:T(256)} parameter(1)
  %h = f32[2]{0:T(256)} parameter(2)
  %in = (s32[], bf16[3,5]{1,0:T(8,128)(2,1)}) tuple(%zero, %q)
  %loop = (s32[], bf16[3,5]{1,0:T(8,128)(2,1)}) while(%in), body=%body
  %go = (f32[7]{0:T(256)}, f32[2]{0:T(256)}) all-reduce-start(%g, %h)
  %all = (f32[7]{0:T(256)}, f32[2]{0:T(256)}) all-reduce-done(%go)
  %some = pred[4]{0} all-gather(%flag), dimensions={0}
  ROOT %r = f32[7]{0:T(256)} get-tuple-element(%all), index=0
}
"""


INSIDE = 2 * 2 * 8 * 128  # bfloat16 in a tile, read and written
OUTSIDE = 2 * 2 * 4 * 256 + 4  # two float32 in tiles, and `some`


def test_bytes_of_a_loop_are_told_from_those_around_it():
    assert bytes_moved(HLO) == ((OUTSIDE, OUTSIDE), (INSIDE, INSIDE))
    without = HLO.replace(" while(", " call(")
    assert bytes_moved(without) == ((OUTSIDE, OUTSIDE), (0, 0))


def test_bytes_on_the_chip_are_told_from_those_in_hbm():
    on_chip = HLO.replace(
        "%y = bf16[3,5]{1,0:T(8,128)(2,1)}",
        "%y = bf16[3,5]{1,0:T(8,128)(2,1)S(1)}",
    )
    assert bytes_moved(on_chip)[1] == (INSIDE, INSIDE / 2)
    copied = """ENTRY %main (q: f32[7]) -> f32[7] {
  %q = f32[7]{0:T(256)} parameter(0)
  %go = (f32[7]{0:T(256)S(1)}, f32[7]{0:T(256)}, u32[]{:S(2)}) copy-start(%q)
  ROOT %r = f32[7]{0:T(256)S(1)} copy-done(%go)
}
"""
    assert bytes_moved(copied)[0] == (2 * 4 * 256 + 4, 4 * 256)


# --- The report


STEP = {
    "rows": 16,
    "segment_length": 10,
    "memory_length": 20,
    "replicas": 4,
    "precision": "bfloat16",
    "model_flops": int(55e12),
    "accumulate_steps": 1,
    "weights": GIB,
    "beside": 0,
}
ANSWER = {
    "device": "TPU v4",
    "seconds": 12.34,
    "arguments": 4 * GIB,
    "outputs": 5 * GIB,
    "aliased": 4 * GIB,
    "temporaries": 8 * GIB,
    "code": 1 * GIB,
    "flops": 137.5e12,
    "bytes_accessed": 614e9,
    "text": HLO,
}


def test_a_report_says_what_follows():
    facts = report(STEP, TYPES["v4-8"], ANSWER)
    assert facts["peak"] == 14 * GIB
    assert facts["fits"]
    assert facts["bound_seconds"] == 0.5
    assert facts["tokens_per_second"] == 4 * 16 * 10 / 0.5
    assert facts["tokens_per_second_of_chip"] == 320
    assert facts["utilization"] == 0.4
    assert facts["loops_counted_once"] == 1
    assert json.loads(json.dumps(facts)) == facts
    text = describe(facts)
    assert "Fits: it needs 14.00 GiB, plus 0.00 GiB outside" in text
    assert re.search(r"\n  flops +1.375e\+14\n", text)


@pytest.mark.parametrize(
    "name, flops, moved, seconds, by",
    [
        ("v4-8", 2 * 275e12, 1228e9, 2.0, "flops"),
        ("v4-8", 275e12, 3 * 1228e9, 3.0, "bytes"),
        ("v3-8", 61.5e12, 1e9, 1.0, "flops"),
    ],
)
def test_the_larger_of_two_times_is_the_bound(name, flops, moved, seconds, by):
    answer = {**ANSWER, "flops": flops, "bytes_accessed": moved}
    facts = report(STEP, TYPES[name], answer)
    assert facts["bound_seconds"] == pytest.approx(seconds)
    assert facts["bound_by"] == by
    # A chip of two replicas does the work of both.
    of_chip = 160 * TYPES[name].chip.cores / seconds
    assert facts["tokens_per_second_of_chip"] == pytest.approx(of_chip)


def test_pieces_are_counted_as_often_as_they_come():
    step = {**STEP, "accumulate_steps": 4}
    facts = report(step, TYPES["v4-8"], ANSWER)
    assert facts["flops"] == 4 * 137.5e12
    assert facts["loops_counted_once"] == 0
    around = (OUTSIDE + 4 * INSIDE) / (OUTSIDE + INSIDE)
    assert facts["bytes_accessed"] == pytest.approx(614e9 * around)
    assert facts["hbm_bytes_accessed"] == pytest.approx(614e9 * around)


def test_what_lies_beside_a_step_counts():
    facts = report(STEP, TYPES["v4-8"], ANSWER)
    assert "outside the step, of 29.21 GiB" in describe(facts)
    for beside, fits in ((15.2, True), (15.3, False)):
        step = {**STEP, "beside": int(beside * GIB)}
        facts = report(step, TYPES["v4-8"], ANSWER)
        assert facts["fits"] is fits
        assert f"{beside:.2f} GiB outside the step" in describe(facts)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("INTERNAL: x", "rejected the step: INTERNAL: x"),
        (
            "It ran out of memory in memory space vmem. Used 25M of 16M vmem.",
            "shorter.*: Used 25M of 16M vmem$",
        ),
    ],
)
def test_other_errors_of_the_compiler_are_told(error, message):
    with pytest.raises(RuntimeError, match=message):
        report(STEP, TYPES["v4-8"], {"error": error})


# --- Where there is no compiler


def test_missing_packages_are_named(monkeypatch):
    versions = {"jax": "0.10.1", "libtpu": None}
    monkeypatch.setattr(compiling, "_version", versions.get)
    with pytest.raises(
        ImportError,
        match=r'txl_keras\[tpu_compile\]".*0.10.1., .libtpu.: None',
    ):
        check_packages()


def test_the_extra_has_the_versions_that_are_asked_for():
    text = (ROOT / "setup.py").read_text("utf-8")
    pinned = dict(re.findall(r'"(jax|libtpu)==([\d.]+)', text))
    assert pinned == compiling.VERSIONS


def test_a_compiler_that_crashes_is_told(monkeypatch, tmp_path):
    script = tmp_path / "crashes.py"
    script.write_text("import os; os.write(2, b'no luck'); os.abort()")
    monkeypatch.setattr(compiling, "_COMPILER", script)
    with pytest.raises(RuntimeError, match="ended with -6:\nno luck"):
        compile_hlo(b"", TYPES["v4-8"], 1)


# --- What the compiler says


@needs_compiler
def test_the_gradients_are_summed_over_all_replicas():
    model = make_model()
    slice_ = TYPES["v4-8"]
    answer = compile_hlo(
        lower(*train_step(model, optimizer="adam"), 4), slice_, 4
    )
    assert answer["device"] == "TPU v4"
    # And the loss.
    (sizes,) = re.findall(r" = \((.*?)\) all-reduce\(", answer["text"])
    shapes = re.findall(r"f32\[([\d,]*)\]", sizes)
    numbers = [math.prod(map(int, filter(None, s.split(",")))) for s in shapes]
    assert sum(numbers) == model.count_params() + 1
    assert "replica_groups={{0,1,2,3}}" in answer["text"]
    optimizer = build_optimizer("adam", 0.01)
    optimizer.build(model.trainable_variables)
    parts = training_bytes(model, optimizer, B)
    exact = parts["weights"] + parts["optimizer"] + parts["memory"]
    # Tiles are filled up: a vector of 12 takes 128.
    assert exact < answer["arguments"] < 100 * exact
    # All that a step changes stays where it is.
    assert exact < answer["aliased"] <= answer["outputs"]


def kernel_step(attention=None, **overrides):
    sizes = {"memory_length": 256, "num_layers": 2, **overrides}
    return train_step(make_model(**sizes), length=256, attention=attention)


@needs_compiler
def test_attention_may_be_a_kernel():
    step = kernel_step("pallas", memory_length=128, num_layers=1)
    # Forward and backward.
    assert lower(*step, 4).count(b"tpu_custom_call") == 2


def compile_kernel_step(name, attention, **overrides):
    slice_ = TYPES[name]
    hlo = lower(
        *kernel_step(attention, **overrides), slice_.num_replicas_in_sync
    )
    return compile_hlo(hlo, slice_, slice_.num_replicas_in_sync)


@needs_compiler
@pytest.mark.tpu
def test_with_a_kernel_fewer_bytes_are_moved():
    at_once, in_kernel = (
        compile_kernel_step("v4-8", kernel, head_dim=64)
        for kernel in (None, "pallas")
    )
    assert in_kernel["bytes_accessed"] < at_once["bytes_accessed"] / 2
    # Scores of so small a step lie in the chip's other memories.
    assert in_kernel["temporaries"] < at_once["temporaries"]


@needs_compiler
@pytest.mark.tpu
@pytest.mark.parametrize("name", ["v5litepod-4", "v5p-8", "v6e-8"])
def test_other_chips_take_the_kernel_too(name):
    answer = compile_kernel_step(name, "pallas")
    assert "error" not in answer
    assert answer["text"].count("tpu_custom_call") >= 4


@needs_compiler
@pytest.mark.tpu
def test_a_step_too_large_for_the_chip_is_refused_with_its_bytes():
    slice_ = TYPES["v2-8"]
    ones = tf.ones((64, 1024))

    def step(x):
        y = tf.tile(x[:, None], (1, 60_000, 1))
        return tf.reduce_sum(tf.sort(y, axis=1), axis=1)

    answer = compile_hlo(lower(step, [ones], 8), slice_, 8)
    facts = report({**STEP, "replicas": 8}, slice_, answer)
    assert not facts["fits"]
    assert facts["peak"] > 64 * 1024 * 60_000 * 4
    assert "Does not fit. Lower --batch_size" in describe(facts)


# --- The command


TINY = (
    "--num_layers=1", "--num_heads=2", "--head_dim=4", "--hidden_dim=8",
    "--intermediate_dim=12", "--memory_length=6", "--segment_length=5",
    "--batch_size=8", "--eval_batch_size=8", "--precision=bfloat16",
)  # fmt: skip


class InThisProcess(futures.ThreadPoolExecutor):
    def __init__(self, *_):
        super().__init__(1)

    def submit(self, function, *args):
        done = futures.Future()
        done.set_result(function(*args))
        return done


@pytest.fixture
def in_this_process(monkeypatch, tmp_path):
    """Lets the command lower in this process, in an empty folder.

    A child would import TensorFlow, too. The last test here, which takes
    minutes, has it.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(futures, "ProcessPoolExecutor", InThisProcess)


@needs_compiler
def test_the_command_reports_the_step_of_a_run(here, in_this_process, tmp_path):
    flags = ("--compile_only", *TINY, "--tpu_type=v5litepod-4")
    printed, code = here("main.py", *flags)
    assert code == 0
    path = tmp_path / "tpu_compile_quickstart_v5litepod-4.json"
    assert os.listdir(tmp_path) == [path.name]
    facts = json.loads(path.read_text())
    assert (facts["replicas"], facts["rows"], facts["chip"]) == (4, 2, "v5e")
    assert "Fits: it needs" in printed


@needs_compiler
def test_bad_flags_end_the_command_with_their_names(
    refuse, in_this_process, tmp_path
):
    cases = (
        (["--tpu_type=v3-32"], ["batch_size=8, 32 replicas"]),
        (["--accumulate_steps=3"], ["accumulate_steps=3"]),
        (["--cutoffs=auto"], ["reads no text to count"]),
        (["--backbone=lstm"], ["gradient of an LSTM"]),
        (["--attention=pallas"], ["multiples of 128", "memory_length=6"]),
    )
    refuse("main.py", cases, "--compile_only", *TINY, "--tpu_type=v4-8")
    assert not os.listdir(tmp_path)


@needs_compiler
@pytest.mark.tpu
def test_a_published_size_compiles(tmp_path):
    flagfiles = ("train/configs/enwik8_base", "tpu_configs/v2_8")
    flags = [f"--flagfile={ROOT / name}.flags" for name in flagfiles]
    done = subprocess.run(
        [sys.executable, ROOT / "train/main.py", "--compile_only", *flags],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    train = json.loads(path.read_text())
    assert 1 * GIB < train["peak"] < 2 * GIB
    assert train["weights"] == 4 * 41_055_436
    # Nominal operations leave out some, and count some that a mask shuts.
    assert 0.9 < train["flops"] / train["model_flops"] < 1.3
