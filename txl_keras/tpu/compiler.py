"""Compiles an HLO module with the TPU compiler of libtpu, without a TPU.

A program of its own, which imports jax and nothing of this package: libtpu
stays out of the process that runs TensorFlow. `compiling.py` runs it. What
it needs of jax is private there, hence the pinned versions.

    python tpu_compiler.py REQUEST.json

The request names the files and the slice: `hlo`, a serialized HLO module;
`text`, where to write the compiled module as text; `output`, where to write
the answer, JSON; `topology` and `options`, of the slice; `replicas`.
"""

import json
import pathlib
import sys
import time

# jax is imported where it is needed, so that a look at this module, as that
# for examples in docstrings, does not need it.


def main(path):
    from jax.errors import JaxRuntimeError

    request = json.loads(pathlib.Path(path).read_text())
    try:
        answer = compile_module(**request["module"])
    # The compiler's own errors: a step too large for the chip, mostly.
    except JaxRuntimeError as error:
        answer = {"error": str(error)}
    pathlib.Path(request["output"]).write_text(json.dumps(answer))


def compile_module(hlo, text, topology, options, replicas):
    """What the compiler says of a module: time, bytes, operations."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=topology, **options
    ).devices
    with mlir.make_ir_context():
        module = _read_module(hlo)
        start = time.monotonic()
        executable = devices[0].client.compile(
            module,
            xla_client.DeviceList(tuple(devices[:replicas])),
            compiler.get_compile_options(replicas, 1),
        )
    seconds = time.monotonic() - start
    compiled = executable.hlo_modules()[0].to_string()
    pathlib.Path(text).write_text(compiled)
    memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    return {
        "device": devices[0].device_kind,
        "seconds": seconds,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
    }


def _read_module(path):
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    serialized = pathlib.Path(path).read_bytes()
    module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(serialized))
    # TensorFlow wraps what it returns in copies of a dialect that the TPU's
    # compiler refuses; a reshape to the same shape does as much: nothing.
    text = module.operation.get_asm(print_generic_op_form=True)
    return ir.Module.parse(text.replace('"mhlo.copy"', '"stablehlo.reshape"'))


if __name__ == "__main__":
    main(sys.argv[1])
