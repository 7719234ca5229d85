"""The graph of one decoding step of a language model, for OpenVINO.

Letters: `B` rows, `M` memory, `S` = M + 1 keys, `N` heads, `H` head size, `D`
hidden size, `R` distances, `V` vocabulary, `L` layers.
"""

import functools
import importlib

import numpy as np
import tensorflow as tf

from txl_keras.layers.compute.problem import MASKED_SCORE
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.weights import weights_by_name

WEIGHTS = ("float32", "bfloat16", "int8")
# 2026.0 computes wrong numbers in bfloat16 (see setup.py).
_OLDEST_RELEASE = (2026, 4)


def import_openvino():
    """Returns the package, or raises `ImportError` if it cannot be used."""
    try:
        openvino = importlib.import_module("openvino")
        found = openvino.__version__
    except ImportError as error:
        openvino, found = None, error
    if openvino is None or _release(found) < _OLDEST_RELEASE:
        oldest = ".".join(map(str, _OLDEST_RELEASE))
        raise ImportError(
            f"OpenVINO {oldest} or newer is needed: pip install "
            f'"txl_keras[openvino]". Received: {found}'
        )
    return openvino


@functools.cache
def openvino_core():
    """Returns the only `openvino.Core` of this process, which is never freed.

    Each gives its thread another stack for signal handlers, which is unmapped
    when it is freed. If several are not freed in reverse order, a stack that is
    gone stays in use, and a signal such as Ctrl-C ends the process (2026.4).
    """
    return import_openvino().Core()


def _release(version):
    return tuple(int(part) for part in version.split(".")[:2])


def unsupported_parts(model, memory_length):
    """Names the parts of a model that the graph lacks; "" if there are none."""
    backbone = model.backbone
    attention = getattr(backbone, "attention_type", None)
    if attention != "relative":
        return f"attention_type={attention!r}"
    if backbone.vocabulary_size is None or not hasattr(model, "softmax"):
        return "no token embedding or no softmax"
    is_changed = any(
        "lora" in weight.path or weight.dtype != "float32"
        for weight in (*backbone.weights, *model.softmax.weights)
    )
    parts = {
        type(backbone).__name__: type(backbone) is not TransformerXLBackbone,
        "memory_length=0": memory_length == 0,
        "embeddings of size 0": 0 in backbone.token_embedding.dims,
        "LoRA or weights that are not float32": is_changed,
    }
    return ", ".join(name for name, is_used in parts.items() if is_used)


class OpenVinoGraph:
    """Builds the graph from a model whose weights have one of `WEIGHTS`.

    Caches and positions are bfloat16 if `is_short`, otherwise float32.

    Attributes:
        precision: String, the `INFERENCE_PRECISION_HINT` to compile it with.
            OpenVINO multiplies by int8 in integers, the fastest way, only where
            the rest is float32 (version 2026.4).
        positions: List of the projected positions of each block, arrays
            `(N, R, H)`. They are inputs, because OpenVINO multiplies by
            constants more slowly (version 2026.4).
    """

    def __init__(
        self, openvino, model, num_rows, memory_length, weights, is_short
    ):
        self._openvino = openvino
        self._op = importlib.import_module("openvino.opset13")
        backbone = model.backbone
        self._cache_type = openvino.Type.f32
        dtype = tf.float32
        if is_short:
            self._cache_type, dtype = openvino.Type.bf16, tf.bfloat16
        self._sizes = (
            num_rows,
            backbone.num_heads,
            memory_length,
            backbone.head_dim,
        )
        self.precision = "bf16" if weights == "bfloat16" else "f32"
        self.positions = [
            tf.cast(rows, dtype).numpy()
            for (rows,) in backbone.project_positions(memory_length + 1)
        ]
        self._backbone, self._softmax = model.backbone, model.softmax
        self._embedding = model.backbone.token_embedding
        self._dtype = weights
        self._weights = weights_by_name(model)

    def build(self):
        """Returns the graph: see `export_openvino` for inputs and outputs."""
        op, num_rows, length = self._op, self._sizes[0], self._sizes[2]
        ids = op.parameter([num_rows], np.int32)
        slot = op.parameter([1], np.int32)
        valid_length = op.parameter([num_rows, 1], np.int32)
        inputs = {"ids": ids, "slot": slot, "valid_length": valid_length}
        for i in range(len(self.positions)):
            for name in ("key", "value"):
                inputs[f"{name}_{i}"] = op.parameter(
                    self._sizes, self._cache_type
                )
        for i, rows in enumerate(self.positions):
            inputs[f"position_{i}"] = op.parameter(rows.shape, self._cache_type)
        tables = [
            self._matrix(self._value(f"token_embedding/embeddings_{i}"))
            for i in range(self._embedding.num_clusters)
        ]
        distances, mask = self._distances(slot, valid_length, length)
        x, entries = self._embed(ids, tables), []
        for i in range(len(self.positions)):
            *past, rows = (
                inputs[f"{name}_{i}"] for name in ("key", "value", "position")
            )
            x, *new = self._block(x, f"block_{i}/", past, rows, distances, mask)
            entries += [op.unsqueeze(entry, 0) for entry in new]
        if self._backbone.normalize_output:
            x = self._norm(x, "output_norm")
        outputs = {
            "log_probs": self._log_probs(x, tables),
            "entries": op.convert(op.concat(entries, 0), self._cache_type),
        }
        for name, node in {**inputs, **outputs}.items():
            node.output(0).set_names({name})
        return self._openvino.Model(
            [op.result(node) for node in outputs.values()], [*inputs.values()]
        )

    def _distances(self, slot, valid_length, length):
        """Returns distances `(S,)`, 0 the last, and the mask `(B, 1, 1, S)`."""
        op = self._op
        age = op.floor_mod(
            op.subtract(np.arange(length, dtype=np.int32), slot),
            np.int32(length),
        )
        own = np.zeros(1, np.int32)
        distances = op.concat([op.subtract(np.int32(length), age), own], 0)
        farthest = valid_length
        if self._backbone.same_length == "pytorch":
            farthest = op.minimum(farthest, np.int32(length - 1))
        mask = op.less_equal(op.unsqueeze(distances, 0), farthest)
        return distances, op.unsqueeze(mask, np.array([1, 2]))

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

    def _block(self, x, name, past, rows, distances, mask):
        """Returns the outputs `(B, D)`, the new key and value `(B, N, H)`.

        `past` are keys and values `(B, N, M, H)`, and `rows` the projected
        positions `(N, R, H)`, the largest distance first.
        """

        def sublayer(x, norm, function):
            norm = f"{name}{norm}_norm"
            if self._backbone.normalize_first:
                y, *new = function(self._norm(x, norm))
                return self._op.add(x, y), *new
            y, *new = function(x)
            return self._norm(self._op.add(x, y), norm), *new

        def attention(x):
            return self._attention(
                x, f"{name}attention/", past, rows, distances, mask
            )

        def feed_forward(x):
            inner = self._dense(x, f"{name}feed_forward_intermediate/kernel")
            output = f"{name}feed_forward_output/kernel"
            return (self._dense(self._op.relu(inner), output),)

        x, *new = sublayer(x, "attention", attention)
        return *sublayer(x, "feed_forward", feed_forward), *new

    def _attention(self, x, name, past, rows, distances, mask):
        """Computes section 3.3 of the paper, as `compute.definition` does."""
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
                self._read(content, past[0], True),
                op.reduce_sum(op.multiply(content, key), last_axis, True),
            ],
            3,
        )
        # One matmul per head for all rows, which share the positions.
        swap = np.array([2, 1, 0, 3])
        by_distance = self._read(op.transpose(position, swap), rows, True)
        farthest = np.int32(num_rows - 1)
        index = op.subtract(farthest, op.minimum(distances, farthest))
        scores = op.add(
            scores,
            op.gather(op.transpose(by_distance, swap), index, last_axis[0]),
        )
        scores = op.select(mask, scores, np.float32(MASKED_SCORE))
        past_weights, own_weight = op.variadic_split(
            op.softmax(scores, 3), last_axis[0], np.array([-1, 1])
        ).outputs()
        attended = op.add(
            self._read(past_weights, past[1], False),
            op.multiply(own_weight, value),
        )
        attended = op.reshape(attended, np.array([0, -1]), True)
        return (
            self._dense(attended, f"{name}output/kernel"),
            *(op.squeeze(new, np.array([2])) for new in (key, value)),
        )

    def _read(self, x, cache, is_transposed):
        """Multiplies `x` by a cache or positions, in the type of these."""
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
            op.add(
                op.matmul(projected, table, False, True),
                self._value(f"softmax/bias_{i}"),
            )
            for i, (projected, table) in enumerate(
                zip(hidden, tables, strict=True)
            )
        )
        if not tails:
            return op.log_softmax(head, 1)
        kernel = self._value("softmax/cluster_kernel")
        entries = op.add(
            op.matmul(hidden[0], kernel, False, True),
            self._value("softmax/cluster_bias"),
        )
        head = op.log_softmax(op.concat([head, entries], 1), 1)
        sizes = np.array([-1, *(1 for _ in tails)])
        words, *entries = op.variadic_split(head, np.int32(1), sizes).outputs()
        inside = (op.log_softmax(tail, 1) for tail in tails)
        return op.concat([words, *map(op.add, inside, entries)], 1)

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
            # As bytes, because OpenVINO's bfloat16 is not NumPy's.
            rows = tf.cast(rows, tf.bfloat16).numpy()
            tensor = self._openvino.Tensor(
                rows.view(np.uint8), rows.shape, self._openvino.Type.bf16
            )
            constant = self._openvino.op.Constant(tensor, shared_memory=False)
            return op.convert(constant, np.float32)
        largest = np.abs(rows).max(axis=1, keepdims=True)
        scale = np.maximum(largest / 127, np.finfo(np.float32).tiny)
        rounded = np.rint(rows / scale).astype(np.int8)
        return op.multiply(op.convert(op.constant(rounded), np.float32), scale)

    def _value(self, name):
        return self._weights[name].numpy()
