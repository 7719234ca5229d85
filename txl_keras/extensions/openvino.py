"""Decodes with OpenVINO, which is faster on CPUs, and exports for it.

The cost of a token is about the cost of reading weights and caches. OpenVINO
gains from weights in fewer bytes; TensorFlow and XLA do not.

Here `S` is M + 1 keys.
"""

import functools
import importlib
import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.extending import register
from txl_keras.layers.compute.problem import MASKED_SCORE
from txl_keras.lazy import import_extra
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.generation.token_reader import TokenReader
from txl_keras.scripts import options
from txl_keras.serving.export_folders import check_model
from txl_keras.serving.export_folders import check_path
from txl_keras.serving.export_folders import export_folder
from txl_keras.types import PathLike
from txl_keras.weights import weights_by_name

_WEIGHTS = ("float32", "bfloat16", "int8")
# 2026.0 computes wrong numbers in bfloat16 (see setup.py).
_OLDEST_RELEASE = (2026, 4)


def _import_openvino():
    openvino = import_extra("openvino")
    if (*map(int, openvino.__version__.split(".")[:2]),) < _OLDEST_RELEASE:
        raise ImportError(
            "OpenVINO 2026.4 or newer is needed: pip install "
            f'"txl_keras[openvino]". Received: {openvino.__version__}'
        )
    return openvino


@functools.cache
def openvino_core():
    """Returns the only `openvino.Core` of this process, which is never freed.

    Each core gives its thread a stack for signal handlers, and unmaps it when
    freed. Unless cores are freed in reverse order, an unmapped stack stays in
    use, and a signal such as Ctrl-C ends the process (2026.4).
    """
    return _import_openvino().Core()


class OpenVinoOptions(options.Options):
    """Holds the options of `txl generate`.

    weights: Dtype of the weights for --engine=openvino. Fewer bytes are faster
        and change the log-probabilities slightly.
    """

    weights: options.one_of(_WEIGHTS) = "float32"


class OpenVinoReader(TokenReader):
    """Reads one token per row with OpenVINO, after prompts with TensorFlow."""

    # The graph takes the caches as inputs. They are arrays of this object:
    # OpenVINO reads them in place, and new keys and values are written into
    # them. As a state of OpenVINO, with `ReadValue` and `Assign`, they would be
    # copied for every token (2026.4). All rows write to the same slot, so their
    # memory begins in text order. Unless weights are float32, caches are
    # bfloat16 if the processor has the instructions.

    options = OpenVinoOptions

    def __init__(self, model, num_rows, memory_length, weights="float32"):
        _check(model, memory_length, weights, "engine")
        super().__init__(model, num_rows, memory_length)
        self._has_bfloat16 = "BF16" in openvino_core().get_property(
            "CPU", "OPTIMIZATION_CAPABILITIES"
        )
        self._settings = model, num_rows, memory_length, weights
        self._hashes = None

    def begin(self, prompts, memory=None):
        super().begin(prompts, memory)
        hashes = [
            tf.fingerprint(tf.reshape(weight.value, (1, -1))).numpy().tobytes()
            for weight in self._settings[0].weights
        ]
        if hashes != self._hashes:
            # The graph contains the values of the weights.
            self._build()
            self._hashes = hashes
        memory = self._cache.memory().in_order()
        self._caches[::2] = [key.numpy() for key in memory.keys]
        self._caches[1::2] = [value.numpy() for value in memory.values]
        self._inputs["slot"][:] = 0
        self._inputs["valid_length"][:, 0] = memory.valid_length.numpy()

    def _build(self):
        is_short = self._settings[-1] != "float32" and self._has_bfloat16
        graph = _Graph(*self._settings, is_short)
        num_rows, model = self.num_rows, graph.build()
        # Keys and values of each block, [2 L, B, N, M, H].
        self._caches = np.zeros(
            (2 * len(graph.positions), *model.input("key_0").shape),
            graph.positions[0].dtype,
        )
        self._inputs = {
            "ids": np.zeros(num_rows, np.int32),
            "slot": np.zeros(1, np.int32),
            "valid_length": np.zeros((num_rows, 1), np.int32),
        }
        for i, rows in enumerate(graph.positions):
            arrays = *self._caches[2 * i : 2 * i + 2], rows
            self._inputs |= zip(_inputs_of(i), arrays, strict=True)
        hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": graph.precision,
        }
        compiled = openvino_core().compile_model(model, "CPU", hints)
        self._request = compiled.create_infer_request()
        # OpenVINO reads the arrays in place, and does not keep them.
        for name, array in self._inputs.items():
            kind = model.input(name).element_type
            self._request.set_tensor(name, _tensor(array, kind))

    def reorder(self, rows):
        self._caches[:] = self._caches[:, rows]
        valid_length = self._inputs["valid_length"]
        valid_length[:] = valid_length[rows]

    def __call__(self, token):
        self._inputs["ids"][:] = token
        self._request.infer()
        log_probs, entries = (x.data for x in self._request.output_tensors)
        slot, valid_length = self._inputs["slot"], self._inputs["valid_length"]
        entries = entries.view(self._caches.dtype)
        self._caches[..., slot[0], :] = entries
        length = self._caches.shape[3]
        slot[:] = (slot + 1) % length
        np.minimum(valid_length + 1, length, out=valid_length)
        return tf.constant(log_probs)


def _tensor(array, kind):
    """Returns a view of an array as a tensor of OpenVINO."""
    # As bytes, because OpenVINO's bfloat16 is not NumPy's.
    return _import_openvino().Tensor(array.view(np.uint8), array.shape, kind)


def _check(model, memory_length, weights, name):
    """Raises `ValueError` if the graph lacks parts of a model."""
    check_one_of("weights", weights, _WEIGHTS)
    backbone = model.backbone
    variables = [*backbone.weights, *model.softmax.weights]
    if (
        type(backbone) is not TransformerXLBackbone
        or backbone.attention_type != "relative"
        or backbone.normalize_first
        or backbone.normalize_output
        or not memory_length
        or any("lora" in x.path or x.dtype != "float32" for x in variables)
    ):
        raise ValueError(
            f"`{name}` must not be OpenVINO's unless the model has a "
            "TransformerXLBackbone with a memory, relative attention and "
            "float32 weights, and neither normalize_first, normalize_output "
            "nor LoRA. Received: "
            f"{type(backbone).__name__} with memory_length={memory_length}, "
            f"attention_type={getattr(backbone, 'attention_type', None)!r}"
        )


def _inputs_of(block):
    """Returns the names of a block's keys, values and positions."""
    return [f"{part}_{block}" for part in ("key", "value", "position")]


class _Graph:
    """Builds a decoding step; caches are bfloat16 if it `is_short`."""

    # `precision` is for compiling: OpenVINO multiplies by int8 in integers,
    # which is fastest, only if the rest is float32. Positions are inputs,
    # because it multiplies by constants more slowly (version 2026.4).

    def __init__(self, model, num_rows, memory_length, weights, is_short):
        self._openvino = _import_openvino()
        self._op = importlib.import_module("openvino.opset13")
        self._backbone = backbone = model.backbone
        self._softmax, self._embedding = model.softmax, backbone.token_embedding
        kinds = self._openvino.Type
        self._cache_type = kinds.bf16 if is_short else kinds.f32
        self._shape = (
            num_rows,
            backbone.num_heads,
            memory_length,
            backbone.head_dim,
        )
        self._dtype, self._weights = weights, weights_by_name(model)
        self.precision = "bf16" if weights == "bfloat16" else "f32"
        self.positions = [
            tf.cast(rows, tf.bfloat16 if is_short else tf.float32).numpy()
            for (rows,) in backbone.project_positions(memory_length + 1)
        ]

    def build(self):
        """Returns the graph: see `export_openvino` for inputs and outputs."""
        op, (num_rows, _, length, _) = self._op, self._shape
        ids = op.parameter([num_rows], np.int32)
        slot = op.parameter([1], np.int32)
        valid_length = op.parameter([num_rows, 1], np.int32)
        inputs = {"ids": ids, "slot": slot, "valid_length": valid_length}
        for i, rows in enumerate(self.positions):
            shapes = self._shape, self._shape, rows.shape
            for name, shape in zip(_inputs_of(i), shapes, strict=True):
                inputs[name] = op.parameter(shape, self._cache_type)
        tables = [
            self._matrix(self._value(f"token_embedding/embeddings_{i}"))
            for i in range(self._embedding.num_clusters)
        ]
        self._set_distances(slot, valid_length, length)
        x, entries = self._embed(ids, tables), []
        for i in range(len(self.positions)):
            past = [inputs[name] for name in _inputs_of(i)]
            x, *new = self._block(x, f"block_{i}/", *past)
            entries += [op.unsqueeze(entry, 0) for entry in new]
        outputs = {
            "log_probs": self._log_probs(x, tables),
            "entries": op.convert(op.concat(entries, 0), self._cache_type),
        }
        for name, node in {**inputs, **outputs}.items():
            node.output(0).set_names({name})
        return self._openvino.Model(
            [op.result(node) for node in outputs.values()], [*inputs.values()]
        )

    def _set_distances(self, slot, valid_length, length):
        """Sets distances `(S,)`, 0 the last, and the mask `(B, 1, 1, S)`."""
        op, slots = self._op, np.arange(length, dtype=np.int32)
        age = op.floor_mod(op.subtract(slots, slot), np.int32(length))
        own = np.zeros(1, np.int32)
        distances = op.concat([op.subtract(np.int32(length), age), own], 0)
        if self._backbone.same_length == "pytorch":
            valid_length = op.minimum(valid_length, np.int32(length - 1))
        mask = op.less_equal(op.unsqueeze(distances, 0), valid_length)
        self._mask = op.unsqueeze(mask, np.array([1, 2]))
        self._distances = distances

    def _embed(self, ids, tables):
        """Returns the first block's input `(B, D)`."""
        op, bounds = self._op, np.array(self._embedding.bounds, np.int32)
        parts = []
        for i, table in enumerate(tables):
            inside = op.clamp(ids, int(bounds[i]), int(bounds[i + 1] - 1))
            row = op.gather(table, op.subtract(inside, bounds[i]), np.int32(0))
            row = self._dense(row, self._projection(i, of_embedding=True))
            is_inside = op.unsqueeze(op.equal(inside, ids), 1)
            parts.append(op.select(is_inside, row, np.float32(0)))
        x = functools.reduce(op.add, parts)
        return op.multiply(x, np.float32(self._backbone.hidden_dim**0.5))

    def _block(self, x, name, *past):
        """Returns the outputs `(B, D)`, the new key and value `(B, N, H)`."""
        op = self._op
        y, *new = self._attention(x, f"{name}attention/", *past)
        x = self._norm(op.add(x, y), f"{name}attention_norm")
        y = self._dense(x, f"{name}feed_forward_intermediate/kernel")
        y = self._dense(op.relu(y), f"{name}feed_forward_output/kernel")
        return self._norm(op.add(x, y), f"{name}feed_forward_norm"), *new

    def _attention(self, x, name, keys, values, rows):
        """Computes section 3.3 of the paper, as in `compute.definition`."""
        op, (num_heads, num_rows, head_dim) = self._op, rows.get_output_shape(0)
        scale = head_dim**-0.5
        # One matmul, because several small ones are slower.
        parts = [f"{name}{part}/kernel" for part in ("query", "key", "value")]
        heads = np.array([0, 3 * num_heads, 1, head_dim])
        query, key, value = op.split(
            op.reshape(self._dense(x, *parts), heads, True), np.int32(1), 3
        ).outputs()
        shared = "" if self._backbone.tie_attention_biases else name
        content, position = (
            op.multiply(
                op.add(query, self._value(shared + bias)[:, None]),
                np.float32(scale),
            )
            for bias in ("content_attention_bias", "positional_attention_bias")
        )
        last_axis = np.array([3])
        scores = op.concat(
            [
                self._read(content, keys, True),
                op.reduce_sum(op.multiply(content, key), last_axis, True),
            ],
            3,
        )
        # One matmul per head for all rows, which share the positions.
        swap = np.array([2, 1, 0, 3])
        by_distance = self._read(op.transpose(position, swap), rows, True)
        farthest = np.int32(num_rows - 1)
        index = op.subtract(farthest, op.minimum(self._distances, farthest))
        scores = op.add(
            scores,
            op.gather(op.transpose(by_distance, swap), index, last_axis[0]),
        )
        scores = op.select(self._mask, scores, np.float32(MASKED_SCORE))
        past_weights, own_weight = op.variadic_split(
            op.softmax(scores, 3), last_axis[0], np.array([-1, 1])
        ).outputs()
        attended = op.add(
            self._read(past_weights, values, False),
            op.multiply(own_weight, value),
        )
        attended = op.reshape(attended, np.array([0, -1]), True)
        return (
            self._dense(attended, f"{name}output/kernel"),
            *(op.squeeze(new, np.array([2])) for new in (key, value)),
        )

    def _read(self, x, cache, is_transposed):
        """Multiplies `x` by a cache or positions, in their dtype."""
        op = self._op
        product = op.matmul(
            op.convert(x, self._cache_type), cache, False, is_transposed
        )
        return op.convert(product, np.float32)

    def _log_probs(self, x, tables):
        """Computes log-probabilities `(B, V)` from hidden states `(B, D)`."""
        op, softmax = self._op, self._softmax
        if not softmax.tie_embeddings:
            tables = [
                self._matrix(self._value(f"softmax/kernel_{i}"))
                for i in range(len(tables))
            ]
        hidden = [
            self._dense(x, self._projection(i, is_tied), is_transposed=True)
            for i, is_tied in enumerate(softmax.tie_projections)
        ]
        head, *tails = (
            self._logits(*parts, f"softmax/bias_{i}")
            for i, parts in enumerate(zip(hidden, tables, strict=True))
        )
        if not tails:
            return op.log_softmax(head, 1)
        kernel = self._value("softmax/cluster_kernel")
        bias = "softmax/cluster_bias"
        entries = self._logits(hidden[0], kernel, bias)
        head = op.log_softmax(op.concat([head, entries], 1), 1)
        sizes = np.array([-1, *(1 for _ in tails)])
        words, *entries = op.variadic_split(head, np.int32(1), sizes).outputs()
        inside = (op.log_softmax(tail, 1) for tail in tails)
        return op.concat([words, *map(op.add, inside, entries)], 1)

    def _logits(self, x, rows, bias):
        product = self._op.matmul(x, rows, False, True)
        return self._op.add(product, self._value(bias))

    def _projection(self, cluster, of_embedding):
        """Returns the name of a cluster's projection, which may not exist."""
        owner = "token_embedding" if of_embedding else "softmax"
        is_shared = of_embedding and self._embedding.div_val == 1
        return f"{owner}/projection_{0 if is_shared else cluster}"

    def _norm(self, x, name):
        op, epsilon = self._op, self._backbone.layer_norm_epsilon
        x = op.mvn(x, np.array([1]), True, epsilon, "inside_sqrt")
        x = op.multiply(x, self._value(f"{name}/gamma"))
        return op.add(x, self._value(f"{name}/beta"))

    def _dense(self, x, *names, is_transposed=False):
        """Multiplies by kernels side by side and adds their biases, if any.

        Returns `x` if the model lacks them. Rows of a kernel are inputs, or
        outputs if it `is_transposed`.
        """
        if names[0] not in self._weights:
            return x
        kernels = [self._value(name) for name in names]
        if not is_transposed:
            # One row per output; kernels with heads become matrices.
            size = x.get_output_shape(0)[-1]
            kernels = [kernel.reshape(size, -1).T for kernel in kernels]
        x = self._op.matmul(
            x, self._matrix(np.concatenate(kernels)), False, True
        )
        biases = [name.removesuffix("kernel") + "bias" for name in names]
        if biases[0] not in self._weights:
            return x
        return self._op.add(x, np.concatenate([*map(self._value, biases)]))

    def _matrix(self, rows):
        """Returns a constant; as int8 it has one scale per row."""
        op, rows = self._op, np.ascontiguousarray(rows)
        if self._dtype == "float32":
            return op.constant(rows)
        if self._dtype == "bfloat16":
            tensor = _tensor(
                tf.cast(rows, tf.bfloat16).numpy(), self._openvino.Type.bf16
            )
            constant = self._openvino.op.Constant(tensor, shared_memory=False)
            return op.convert(constant, np.float32)
        largest = np.abs(rows).max(axis=1, keepdims=True)
        scale = np.maximum(largest / 127, np.finfo(np.float32).tiny)
        rounded = np.rint(rows / scale).astype(np.int8)
        return op.multiply(op.convert(op.constant(rounded), np.float32), scale)

    def _value(self, name):
        return self._weights[name].numpy()


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
    row and predicts the next token. Memory belongs to the client: it passes the
    same arrays to every call and writes the returned entries into them, so that
    no call copies them.

    | in | |
    |---|---|
    | `ids` | int32 `(B,)` |
    | `slot` | int32 `(1,)`, the number of tokens read before, modulo M |
    | `valid_length` | int32 `(B, 1)`, how many of them are in memory; at 0 a \
row begins another text |
    | `key_0`, `value_0`, `key_1` ... | `(B, N, M, H)`, zeros at first |
    | `position_0` ... | the arrays in `positions.npz`, in every call |

    | out | |
    |---|---|
    | `log_probs` | float32 `(B, V)` |
    | `entries` | `(2 L, B, N, H)`: write number i to `[:, :, slot]` of the \
i-th of the keys and values |

    `assets/settings.json` has `initial_valid_length`, which is 0, or M if
    memory begins with zeros that count (`cold_start="zeros"`). It also has
    `inference_precision`, in which the model should be compiled. OpenVINO and
    the file of positions show bfloat16 as NumPy's float16, without changing the
    bits.

    Args:
        model: `TransformerXLCausalLM` with relative attention.
        path: See `export`.
        memory_length: Optional integer `M`; by default the model's own.
        num_rows: Integer `B`.
        weights_dtype: String. `"float32"`; `"bfloat16"`; or `"int8"`, kernels
            and tables rounded with one scale per output. Caches are bfloat16
            unless it is `"float32"`.
        settings, assets: See `export`.

    Example (docs/serving.md also has a client):

    ```python
    import tempfile

    from txl_keras.extensions.openvino import export_openvino
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    path = tempfile.mkdtemp() + "/quickstart"
    export_openvino(model, path, memory_length=16, weights_dtype="int8")
    ```
    """
    path = check_path(path)
    check_model(model, TransformerXLCausalLM)
    memory_length = model.backbone.past_length(memory_length)
    check_integer("num_rows", num_rows, 1)
    _check(model, memory_length, weights_dtype, "format")
    is_valid = model.backbone.cold_start == "zeros"
    is_short = weights_dtype != "float32"
    graph = _Graph(model, num_rows, memory_length, weights_dtype, is_short)
    own_settings = {
        "model": model.get_config(),
        "memory_length": memory_length,
        "initial_valid_length": memory_length if is_valid else 0,
        "num_rows": num_rows,
        "weights_dtype": weights_dtype,
        "inference_precision": graph.precision,
    }
    view = np.float16 if is_short else np.float32
    with (
        export_folder(path, own_settings, settings, assets) as unfinished,
        tempfile.TemporaryDirectory() as local,
    ):
        # OpenVINO writes only to local files.
        local = pathlib.Path(local)
        _import_openvino().save_model(
            graph.build(), local / "model.xml", compress_to_fp16=False
        )
        rows = {
            f"position_{i}": rows.view(view)
            for i, rows in enumerate(graph.positions)
        }
        np.savez(local / "positions.npz", **rows)
        for file in local.iterdir():
            target = os.path.join(unfinished, file.name)
            tf.io.gfile.copy(str(file), target)


class OpenVinoFormat(options.Options):
    """Holds the options of `txl export`.

    num_rows: Rows that --format=openvino reads at once.
    weights_dtype: Dtype in which --format=openvino stores weights.
    """

    num_rows: options.integer(1) = 1
    weights_dtype: options.one_of(_WEIGHTS) = "float32"
    write = staticmethod(export_openvino)


register("engine", openvino=OpenVinoReader)
register("export_format", openvino=OpenVinoFormat)
