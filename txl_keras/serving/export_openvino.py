"""Export of language models for OpenVINO, which decodes fast on CPUs.

Letters: `B` rows, `M` memory, `N` heads, `H` head size, `V` vocabulary, `L`
layers.
"""

import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.models.generation.openvino_graph import WEIGHTS
from txl_keras.models.generation.openvino_graph import OpenVinoGraph
from txl_keras.models.generation.openvino_graph import import_openvino
from txl_keras.models.generation.openvino_graph import unsupported_parts
from txl_keras.serving.export_folders import check_path
from txl_keras.serving.export_folders import export_folder
from txl_keras.types import PathLike


def export_openvino(
    model: keras.Model,
    path: PathLike,
    memory_length: int | None = None,
    num_rows: int = 1,
    weights_dtype: str = "float32",
    settings: dict | None = None,
    assets: dict | None = None,
) -> None:
    """Exports a language model, token by token, for OpenVINO.

    `model.xml` and `model.bin` need no TensorFlow. A call reads one token per
    row and predicts the next one. Memory belongs to the client, which gives the
    same arrays to every call and writes what comes back into them, so that no
    call copies them; see the example.

    | in | |
    |---|---|
    | `ids` | int32 `(B,)` |
    | `slot` | int32 `(1,)`, the number of tokens read before, modulo M |
    | `valid_length` | int32 `(B, 1)`, as many of them as are in memory |
    | `key_0`, `value_0`, `key_1` ... | `(B, N, M, H)`, zeros at first |
    | `position_0` ... | those in `positions.npz`, in every call |

    | out | |
    |---|---|
    | `log_probs` | float32 `(B, V)` |
    | `entries` | `(2 L, B, N, H)`: write number i to `[:, :, slot]` of the \
i-th of the keys and values |

    `assets/settings.json` has `initial_valid_length`, which is 0, or M if
    memory begins with zeros that count (`cold_start="zeros"`), and
    `inference_precision`, in which the model should be compiled. OpenVINO shows
    bfloat16 as NumPy's float16 without changing the bits; so does the file of
    positions.

    Args:
        model: `TransformerXLCausalLM` with relative attention.
        path: See `export`.
        memory_length: Optional integer `M`; by default the model's own.
        num_rows: Integer `B`.
        weights_dtype: String. `"float32"`; `"bfloat16"`; or `"int8"`, kernels
            and tables rounded with one scale per output. Caches are bfloat16
            unless it is `"float32"`.
        settings, assets: See `export`.

    Example:

    ```python
    import json
    import tempfile

    import numpy as np
    import openvino
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.serving import export_openvino

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    path = tempfile.mkdtemp() + "/quickstart"
    export_openvino(model, path, memory_length=16)

    with open(path + "/assets/settings.json") as file:
        settings = json.load(file)
    compiled = openvino.compile_model(
        path + "/model.xml",
        "CPU",
        {"INFERENCE_PRECISION_HINT": settings["inference_precision"]},
    )
    request = compiled.create_infer_request()
    inputs = {x.any_name: request.get_tensor(x).data for x in compiled.inputs}
    for array in inputs.values():
        array[...] = 0
    for name, array in np.load(path + "/positions.npz").items():
        inputs[name][...] = array
    inputs["valid_length"][...] = settings["initial_valid_length"]
    caches = [inputs[x] for x in inputs if x.startswith(("key", "value"))]
    for number, token in enumerate([72, 105]):
        inputs["ids"][...] = token
        slot = number % settings["memory_length"]
        inputs["slot"][...] = slot
        request.infer()
        log_probs, entries = (x.data for x in request.output_tensors)
        for cache, entry in zip(caches, entries):
            cache[:, :, slot] = entry
        inputs["valid_length"][...] = (inputs["valid_length"] + 1).clip(
            max=settings["memory_length"]
        )
    ```
    """
    path = check_path(path)
    check_one_of("weights_dtype", weights_dtype, WEIGHTS)
    if memory_length is None:
        memory_length = model.backbone.memory_length
    check_integer("memory_length", memory_length, 0)
    check_integer("num_rows", num_rows, 1)
    unsupported = unsupported_parts(model, memory_length)
    unsupported = unsupported or _initial_cache(model)
    if unsupported:
        raise ValueError(
            "`model` must have relative attention, remember the inputs of its "
            "blocks, and have a memory and float weights to be exported for "
            "OpenVINO. Export it as a SavedModel. Received: a model with "
            f"{unsupported}"
        )
    openvino = import_openvino()
    is_short = weights_dtype != "float32"
    graph = OpenVinoGraph(
        openvino, model, num_rows, memory_length, weights_dtype, is_short
    )
    is_valid = model.backbone.cold_start == "zeros"
    own_settings = {
        "model": model.get_config(),
        "memory_length": memory_length,
        "initial_valid_length": memory_length if is_valid else 0,
        "num_rows": num_rows,
        "weights_dtype": weights_dtype,
        "inference_precision": graph.precision,
    }
    with (
        export_folder(path, own_settings, settings, assets) as unfinished,
        tempfile.TemporaryDirectory() as local,
    ):
        # OpenVINO writes to local files only.
        local = pathlib.Path(local)
        openvino.save_model(
            graph.build(), local / "model.xml", compress_to_fp16=False
        )
        view = np.float16 if is_short else np.float32
        np.savez(
            local / "positions.npz",
            **{
                f"position_{i}": rows.view(view)
                for i, rows in enumerate(graph.positions)
            },
        )
        for file in local.iterdir():
            target = os.path.join(unfinished, file.name)
            tf.io.gfile.copy(str(file), target)


def _initial_cache(model):
    """Names a memory whose first keys and values are not zeros; else ""."""
    memory = model.backbone.project_memory(model.initial_memory(1, 1))
    is_zero = not any(map(np.any, (*memory.keys, *memory.values)))
    if is_zero or not np.any(memory.valid_length):
        return ""
    return "cold_start='zeros' and biases or normalize_first=True"
