"""Compiles an HLO module with the TPU compiler of libtpu, without a TPU.

This is a separate program, run by `compiling.py`, so that libtpu stays out of
the process that runs TensorFlow. It imports jax and nothing of this package. It
uses private parts of jax, hence the pinned versions.

    python compiler.py REQUEST < HLO > ANSWER
"""

import json
import sys
import time


def compile_module(hlo, topology, options, replicas):
    """Compiles an HLO module and returns its text, time, sizes and costs."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=topology, **options
    ).devices
    with mlir.make_ir_context():
        module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(hlo))
        # TensorFlow wraps outputs in `mhlo.copy`, which the TPU compiler
        # rejects. A reshape to the same shape is also a no-op.
        text = module.operation.get_asm(print_generic_op_form=True)
        text = text.replace('"mhlo.copy"', '"stablehlo.reshape"')
        start = time.monotonic()
        executable = devices[0].client.compile(
            ir.Module.parse(text),
            xla_client.DeviceList(tuple(devices[:replicas])),
            compiler.get_compile_options(replicas, 1),
        )
    seconds = time.monotonic() - start
    memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    return {
        "device": devices[0].device_kind,
        "seconds": seconds,
        "text": executable.hlo_modules()[0].to_string(),
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
    }


if __name__ == "__main__":
    from jax.errors import JaxRuntimeError

    hlo, request = sys.stdin.buffer.read(), json.loads(sys.argv[1])
    try:
        answer = compile_module(hlo, **request)
    # Mostly raised for a step that is too large for the chip.
    except JaxRuntimeError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
