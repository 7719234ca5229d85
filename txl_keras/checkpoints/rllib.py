"""Import of the GTrXL of RLlib, Ray's library of reinforcement learning.

Letters: `D` hidden size, `F` features, `N` heads, `H` head size.
"""

import os
import re

import keras
import numpy as np

from txl_keras.checkpoints.layout import Entry
from txl_keras.checkpoints.layout import read
from txl_keras.checkpoints.torch_files import load_torch
from txl_keras.checkpoints.torch_files import torch_tensors
from txl_keras.checks import check_integer
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.tensor_files import Tensors

_PROJECTION = re.compile(
    r"(?P<prefix>(?:.*\.)?)linear_layer\._model\.0\.weight"
)
# The gate's kernels: names in RLlib and ours. Both are `(in, out)`.
_GATE = {
    "_w_r": "w_reset",
    "_u_r": "u_reset",
    "_w_z": "w_update",
    "_u_z": "u_update",
    "_w_h": "w_candidate",
    "_u_h": "u_candidate",
    "_bias_z": "gate_bias",
}


def load_rllib(state, memory_length, dtype=None):
    """Loads the weights of RLlib's `GTrXLNet` for PyTorch.

    That is the network of Parisotto et al., 2019, which RLlib puts below the
    heads of a policy with `use_attention`. Heads of policy and value are left
    out. As in RLlib, memory starts as zeros that are attended to. No pickled
    code is executed.

    Args:
        state: Path of a file of `torch.save(model.state_dict())`, or a
            dictionary of arrays by name, such as `policy.get_weights()`.
            PyTorch is not needed.
        memory_length: Integer, RLlib's `attention_memory_inference`.
        dtype: Optional dtype policy, such as `"mixed_bfloat16"`.

    Returns:
        Pair of a `keras.layers.Dense` from F features to D, and a
        `TransformerXLBackbone` that reads its outputs as `embeddings`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or refers to code, or its tensors
            are not those of a `GTrXLNet`; the message lists all problems.

    Example, with a file that is not part of the package:

    ```
    projection, backbone = load_rllib("policy.pt", memory_length=50)
    hidden, memory = backbone(
        embeddings=projection(features), memory=memory, reset=reset
    )
    ```

    Reference:
        [Parisotto et al., 2019](https://arxiv.org/abs/1910.06764);
        `rllib/models/torch/attention_net.py` of Ray 2.9.
    """
    check_integer("memory_length", memory_length, 0)
    source = "`state`"
    if isinstance(state, (str, os.PathLike)):
        source = os.fspath(state)
        tensors = torch_tensors(load_torch(source), source)
    else:
        tensors = _tensors_of_arrays(state)
    tensors = _network(tensors, source)
    projection = _read_projection(tensors, dtype, source)
    tensors = tensors.renamed(
        lambda name: name if name.startswith("attention_layers.") else None
    )
    sizes = _sizes(tensors, source)
    layout = [
        entry
        for i in range(sizes["num_layers"])
        for entry in _block(sizes, projection.units, i)
    ]

    def build():
        return TransformerXLBackbone(
            vocabulary_size=None,
            hidden_dim=projection.units,
            memory_length=memory_length,
            normalize_first=True,
            gate="gru",
            tie_attention_biases=False,
            cold_start="zeros",
            dtype=dtype,
            **sizes,
        )

    return projection, read(build, layout, tensors, source)


def _tensors_of_arrays(state):
    """Returns the `Tensors` of a dictionary of arrays."""
    if not isinstance(state, dict) or not state:
        raise ValueError(
            "`state` must be the path of a file or a dictionary of arrays by "
            f"name. Received: {type(state).__name__}"
        )
    arrays = {str(name): np.asarray(array) for name, array in state.items()}
    return Tensors(
        {name: array.shape for name, array in arrays.items()},
        arrays.__getitem__,
        sum(array.nbytes for array in arrays.values()),
    )


def _network(tensors, source):
    """Returns the tensors of the network, without a policy's prefix."""
    found = [
        match for name in tensors if (match := _PROJECTION.fullmatch(name))
    ]
    if len(found) != 1:
        raise ValueError(
            f"{source} must hold the tensors of one GTrXLNet, with one "
            "linear_layer._model.0.weight. Received: "
            f"{len(found)} of {len(tensors)} tensors with this name"
        )
    prefix = found[0]["prefix"]
    parts = ("linear_layer.", "attention_layers.")
    return tensors.renamed(
        lambda name: (
            name.removeprefix(prefix)
            if name.startswith(tuple(prefix + part for part in parts))
            else None
        )
    )


def _read_projection(tensors, dtype, source):
    """Reads the map from features to the first block."""
    tensors = tensors.renamed(
        lambda name: name if name.startswith("linear_layer.") else None
    )
    shape = tensors.shapes["linear_layer._model.0.weight"]
    if len(shape) != 2 or not all(shape):
        raise ValueError(
            f"{source}: linear_layer._model.0.weight must be a matrix. "
            f"Received: shape {shape}"
        )
    units, num_features = shape

    def build():
        layer = keras.layers.Dense(units, dtype=dtype, name="projection")
        layer.build((None, None, num_features))
        return layer

    layout = [
        Entry(
            ("linear_layer._model.0.weight",), ("kernel",),
            (units, num_features), transposed=True,
        ),
        Entry(("linear_layer._model.0.bias",), ("bias",), (units,)),
    ]  # fmt: skip
    return read(build, layout, tensors, source)


def _sizes(tensors, source):
    """Returns the sizes of the blocks, from the shapes of the first."""
    numbers = {int(name.split(".")[1]) for name in tensors if _is_layer(name)}
    attention, feed_forward = "attention_layers.0._layer", "attention_layers.1"
    heads = tensors.shapes.get(f"{attention}._uvar", ())
    inner = tensors.shapes.get(f"{feed_forward}._layer.1._model.0.weight", ())
    # Two entries per block: attention and feed-forward network.
    is_complete = numbers == set(range(len(numbers))) and len(numbers) % 2 == 0
    if not (is_complete and len(heads) == len(inner) == 2):
        raise ValueError(
            f"{source} must hold pairs of attention_layers, of an attention "
            f"with _uvar and a feed-forward network. Received: {len(tensors)} "
            f"tensors of attention_layers of the numbers {sorted(numbers)}"
        )
    num_heads, head_dim = heads
    return {
        "num_layers": len(numbers) // 2,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "intermediate_dim": inner[0],
    }


def _is_layer(name):
    return re.match(r"attention_layers\.\d{1,4}\.", name) is not None


def _block(sizes, hidden_dim, i):
    """Yields the entries of a block: two layers of RLlib."""
    heads = (sizes["num_heads"], sizes["head_dim"])
    width, inner = heads[0] * heads[1], sizes["intermediate_dim"]
    attention = f"attention_layers.{2 * i}"
    feed_forward = f"attention_layers.{2 * i + 1}"
    ours = f"block_{i}"

    def linear(name, weights, shape, axis=0):
        paths = tuple(f"{ours}/{weight}/kernel" for weight in weights)
        return Entry(
            (f"{name}._model.0.weight",), paths, shape[::-1], True, axis=axis
        )

    def vector(name, weight, shape=(hidden_dim,)):
        return Entry((name,), (f"{ours}/{weight}",), shape)

    yield linear(
        f"{attention}._layer._qkv_layer",
        [f"attention/{part}" for part in ("query", "key", "value")],
        (hidden_dim, 3 * width),
        axis=1,
    )
    yield linear(
        f"{attention}._layer._pos_proj",
        ["attention/position"],
        (hidden_dim, width),
    )
    yield linear(
        f"{attention}._layer._linear_layer",
        ["attention/output"],
        (width, hidden_dim),
    )
    for name, bias in (("_uvar", "content"), ("_vvar", "positional")):
        yield vector(
            f"{attention}._layer.{name}",
            f"attention/{bias}_attention_bias",
            heads,
        )
    for name, norm in (
        (f"{attention}._layer._input_layernorm", "attention_norm"),
        (f"{feed_forward}._layer.0", "feed_forward_norm"),
    ):
        yield vector(f"{name}.weight", f"{norm}/gamma")
        yield vector(f"{name}.bias", f"{norm}/beta")
    for number, part, shape in (
        (1, "intermediate", (hidden_dim, inner)),
        (2, "output", (inner, hidden_dim)),
    ):
        name = f"{feed_forward}._layer.{number}"
        yield linear(name, [f"feed_forward_{part}"], shape)
        # RLlib has no biases here; ours begin as zeros.
        yield Entry((), (f"{ours}/feed_forward_{part}/bias",), shape[1:])
    for layer, gate in (
        (attention, "attention_gate"),
        (feed_forward, "feed_forward_gate"),
    ):
        for name, weight in _GATE.items():
            shape = (hidden_dim,) * (1 if weight == "gate_bias" else 2)
            yield vector(
                f"{layer}._fan_in_layer.{name}", f"{gate}/{weight}", shape
            )
