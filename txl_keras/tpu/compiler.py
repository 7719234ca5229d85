"""Compiles an HLO module with the TPU compiler of libtpu, without a TPU.

This is a separate program, run by `compiling.py`, so that libtpu stays out of
the process that runs TensorFlow. It imports jax and nothing of this package. It
uses private parts of jax, hence the pinned versions.

    python compiler.py ANSWER.json REQUEST

The request is JSON text with the arguments of `compile_module`.
"""

import json
import pathlib
import sys
import time

# jax is imported inside functions, so that tools that collect docstrings can
# import this module without it.


def main(answer_path, request):
    from jax.errors import JaxRuntimeError

    try:
        answer = compile_module(**json.loads(request))
    # Mostly raised for a step that is too large for the chip.
    except JaxRuntimeError as error:
        answer = {"error": str(error)}
    pathlib.Path(answer_path).write_text(json.dumps(answer))


def compile_module(hlo, text, topology, options, replicas):
    """Compiles an HLO module and returns its compile time, sizes and costs."""
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
    # TensorFlow wraps outputs in `mhlo.copy`, which the TPU compiler rejects.
    # A reshape to the same shape is also a no-op.
    text = module.operation.get_asm(print_generic_op_form=True)
    return ir.Module.parse(text.replace('"mhlo.copy"', '"stablehlo.reshape"'))


if __name__ == "__main__":
    main(*sys.argv[1:])
