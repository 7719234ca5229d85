"""Gates of GTrXL, and blocks with them."""

import numpy as np
import pytest
from attention_loops import random
from checkpoints.stored_models import GOLDEN

from txl_keras.layers import DecoderBlock
from txl_keras.layers import Gate
from txl_keras.layers.gate import GATES
from txl_keras.weights import weights_by_name

B, T, M, D = 2, 5, 7, 8


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN / "gtrxl_gates" / "golden.npz"))


def gate_of(golden, kind):
    """The gate of the golden numbers."""
    gate = Gate(kind, dtype="float64")
    gate.build((None, None, D), (None, None, D))
    for name, weight in weights_by_name(gate).items():
        letter, _, part = name.partition("_")
        part = {"reset": "r", "update": "z"}.get(part, "g")
        key = "bias" if name == "gate_bias" else f"{letter}_{part}"
        weight.assign(golden[key])
    return gate


@pytest.mark.parametrize("kind", GATES)
def test_outputs_equal_the_golden_ones(kind, golden):
    found = gate_of(golden, kind)(golden["x"], golden["y"])
    np.testing.assert_allclose(found, golden[f"gate/{kind}"], rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "bias"), [("gru", 2.0), ("highway", 1.0), ("output", 1.0)]
)
def test_the_bias_begins_as_in_the_paper(kind, bias):
    gate = Gate(kind)
    gate.build((None, D))
    np.testing.assert_array_equal(
        weights_by_name(gate)["gate_bias"], np.full(D, bias)
    )


@pytest.mark.parametrize("kind", GATES)
def test_a_block_has_a_gate_for_each_sum(kind):
    sizes = {"num_heads": 2, "head_dim": 3, "intermediate_dim": 10}
    block = DecoderBlock(**sizes, normalize_first=True, gate=kind)
    x, memory = random(B, T, D), random(B, M, D, seed=1)
    found = block(x, memory=memory)

    def normalized(states):  # the norms are at their initial values
        deviation = np.sqrt(states.var(axis=-1, keepdims=True) + 1e-5)
        return (states - states.mean(axis=-1, keepdims=True)) / deviation

    attention_gate, feed_forward_gate = (
        next(part for part in block._flatten_layers() if part.name == name)
        for name in ("attention_gate", "feed_forward_gate")
    )
    weights = weights_by_name(block)
    attended = block.attention(normalized(x), memory=normalized(memory))
    x = np.asarray(attention_gate(x, np.maximum(attended, 0)))
    inner = np.maximum(
        normalized(x) @ weights["feed_forward_intermediate/kernel"].numpy(), 0
    )
    update = inner @ weights["feed_forward_output/kernel"].numpy()
    expected = feed_forward_gate(x, np.maximum(update, 0))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gate": "gru"}, "`normalize_first` must be True"),
        ({"gate": "lstm", "normalize_first": True}, "`gate` must be one of"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DecoderBlock(2, 3, 10, **settings)
    with pytest.raises(ValueError, match="`bias`"):
        Gate("gru", bias=float("nan"))
