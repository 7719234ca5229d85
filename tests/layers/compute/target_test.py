"""The target that layers are traced for, and graphs for a CPU."""

import pytest
import tensorflow as tf

from txl_keras.layers.compute import target

FLAGS = {
    "old": "fpu avx2 fma",
    "float32": "fpu avx512f avx512_vnni",
    "both": "fpu avx512f avx512_vnni avx512_bf16",
}


@pytest.fixture
def cpu(tmp_path, monkeypatch):
    """Function that says what the CPU is to be."""

    def become(name):
        file = tmp_path / name
        if name in FLAGS:
            flags = f"flags\t\t: {FLAGS[name]}\n\nflags\t: y\n"
            file.write_text(f"model name\t: x\n{flags}")
        monkeypatch.setattr(target, "_CPU_INFO", file)

    return become


def test_tensorflow_multiplies_where_the_cpu_has_the_instructions(cpu):
    found = {}
    for name in (*FLAGS, "unknown"):
        cpu(name)
        found[name] = [
            (dtype, training)
            for dtype in ("float32", "bfloat16", "float16")
            for training in (False, True)
            if target.prefers_tensorflow_matmul(dtype, training)
        ]
    assert found == {
        "old": [],
        "unknown": [],
        "float32": [("float32", True)],
        "both": [("float32", True), ("bfloat16", False), ("bfloat16", True)],
    }
    # XLA does in small models in float32.
    cpu("both")
    for dtype, size, expected in (
        ("float32", 383, False), ("float32", 384, True), ("bfloat16", 9, True)
    ):  # fmt: skip
        found = target.prefers_tensorflow_matmul(dtype, True, size)
        assert found == expected


@target.fused
def double(x):
    return 2 * x


@pytest.mark.parametrize("in_parts", [False, True])
def test_only_parts_are_functions_of_their_own(in_parts):
    def quadruple(x):
        assert target.current() == on_cpu
        return double(double(x))

    on_cpu = target.Target("cpu", in_parts)
    compiled = target.compile_for(on_cpu, quadruple)
    assert compiled(tf.constant(3)).numpy() == 12
    graph = compiled.get_concrete_function(tf.constant(3)).graph
    calls = [op.type for op in graph.get_operations() if "Call" in op.type]
    assert len(calls) == (2 if in_parts else 0)
    assert target.current() == target.Target()
