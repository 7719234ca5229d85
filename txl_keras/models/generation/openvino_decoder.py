"""Decoding by OpenVINO, for CPUs.

A token costs about what it takes to read weights and caches. TensorFlow and
XLA gain nothing from weights in fewer bytes, OpenVINO does.

Letters: `B` rows, `M` memory, `N` heads, `H` head size, `V` vocabulary, `L`
layers.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_one_of
from txl_keras.models.generation.openvino_graph import WEIGHTS
from txl_keras.models.generation.openvino_graph import OpenVinoGraph
from txl_keras.models.generation.openvino_graph import import_openvino
from txl_keras.models.generation.openvino_graph import openvino_core
from txl_keras.models.generation.openvino_graph import unsupported_parts
from txl_keras.models.generation.token_reader import TokenReader

ENGINES = ("tensorflow", "openvino")


def check_engine(engine, weights, model, memory_length):
    """Checks an engine, the dtype of its weights, and what it has to decode."""
    check_one_of("engine", engine, ENGINES)
    check_one_of("weights", weights, WEIGHTS)
    if engine == "tensorflow":
        if weights != "float32":
            raise ValueError(
                "`weights` must be 'float32' with engine='tensorflow', which "
                "gains nothing from fewer bytes. Use engine='openvino', or "
                f"`model.quantize('int8')`. Received: weights={weights!r}"
            )
        return
    unsupported = unsupported_parts(model, memory_length)
    if unsupported:
        raise ValueError(
            "`engine` must be 'tensorflow' unless the model has relative "
            "attention, remembers the inputs of its blocks, and has a memory "
            f"and float weights. Received: engine={engine!r} and a model with "
            f"{unsupported}"
        )
    import_openvino()
    if weights == "bfloat16" and not _has_bfloat16():
        raise ValueError(
            "`weights` must be 'float32' or 'int8' on a processor without "
            f"bfloat16 instructions. Received: weights={weights!r}"
        )


def _has_bfloat16():
    name = "OPTIMIZATION_CAPABILITIES"
    return "BF16" in openvino_core().get_property("CPU", name)


class OpenVinoDecoder:
    """Reads one token per row and returns what may follow, by OpenVINO.

    The graph takes the caches as inputs. They are arrays of this object, which
    OpenVINO reads where they are, and into which the new keys and values are
    written. As a state of OpenVINO, with `ReadValue` and `Assign`, they would
    be copied for every token (version 2026.4). All rows write to the same
    slot, so their memory begins in text order.

    `weights` is one of `WEIGHTS`. Unless it is `"float32"`, caches are bfloat16
    if the processor has the instructions.
    """

    def __init__(self, model, num_rows, memory_length, weights="float32"):
        openvino = import_openvino()
        is_short = weights != "float32" and _has_bfloat16()
        graph = OpenVinoGraph(
            openvino, model, num_rows, memory_length, weights, is_short
        )
        network = graph.build()
        # Keys and values of each block, [2 L, B, N, M, H].
        self._caches = np.zeros(
            (2 * len(graph.positions), *network.input("key_0").shape),
            graph.positions[0].dtype,
        )
        self._ids = np.zeros(num_rows, np.int32)
        self._slot = np.zeros(1, np.int32)
        self._valid_length = np.zeros((num_rows, 1), np.int32)
        compiled = openvino_core().compile_model(
            network,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": graph.precision,
            },
        )
        self._request = compiled.create_infer_request()
        # OpenVINO reads the arrays where they are, and does not keep them.
        self._arrays = (
            self._ids,
            self._slot,
            self._valid_length,
            *self._caches,
            *graph.positions,
        )
        for number, array in enumerate(self._arrays):
            # As bytes, because OpenVINO's bfloat16 is not NumPy's.
            tensor = openvino.Tensor(
                array.view(np.uint8),
                array.shape,
                network.input(number).element_type,
            )
            self._request.set_input_tensor(number, tensor)

    def begin(self, memory):
        """Copies the `ProjectedMemory` of the text that was read so far."""
        # Block by block: a copy of all caches may not fit in memory.
        for i, (key, value) in enumerate(
            zip(memory.keys, memory.values, strict=True)
        ):
            block = memory._replace(keys=(key,), values=(value,)).in_order()
            self._caches[2 * i] = block.keys[0].numpy()
            self._caches[2 * i + 1] = block.values[0].numpy()
        self._slot[:] = 0
        self._valid_length[:, 0] = memory.valid_length.numpy()

    def __call__(self, ids):
        """Returns log-probabilities `(B, V)` of the tokens after `ids` `(B,)`.

        The next call overwrites them.
        """
        self._ids[:] = ids
        self._request.infer()
        log_probs, entries = (
            tensor.data for tensor in self._request.output_tensors
        )
        entries = entries.view(self._caches.dtype)
        self._caches[..., self._slot[0], :] = entries
        length = self._caches.shape[3]
        self._slot[:] = (self._slot + 1) % length
        np.minimum(self._valid_length + 1, length, out=self._valid_length)
        return log_probs


class OpenVinoReader(TokenReader):
    """Reads one token per row by OpenVINO, after prompts by TensorFlow.

    A call returns `answer(log_probs, *args)` for log-probabilities `(B, V)`.
    """

    def __init__(self, model, num_rows, memory_length, answer, weights):
        super().__init__(model, num_rows, memory_length, answer)
        self._settings = model, num_rows, memory_length, weights
        self._decoder = self._hashes = None
        self._draw = tf.function(answer, jit_compile=True, autograph=False)

    def begin(self, prompts, memory=None):
        super().begin(prompts, memory)
        hashes = [
            tf.fingerprint(tf.reshape(weight.value, (1, -1))).numpy().tobytes()
            for weight in self._settings[0].weights
        ]
        if hashes != self._hashes:
            # The graph has the values of the weights.
            self._decoder = OpenVinoDecoder(*self._settings)
            self._hashes = hashes
        self._decoder.begin(self._cache.memory())

    def __call__(self, token, *args):
        return self._draw(tf.constant(self._decoder(token.numpy())), *args)
