"""A program that another one talks to."""

import sys

import pytest

from benchmarks.peer import open_peer
from txl_keras.models import TransformerXLCausalLM


@pytest.mark.parametrize(
    "program, message",
    [
        ("print('Hello')", "it printed no JSON but 'Hello'"),
        ("", "it has ended"),
        ('print(\'{"error": "no torch"}\')', "no torch"),
    ],
)
def test_what_is_no_peer_is_named(program, message, tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(program)
    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    peer = open_peer(script, sys.executable, model, batch_size=2)
    with pytest.raises(RuntimeError, match=message) as raised, peer:
        pass
    assert str(script) in str(raised.value)
    assert sys.executable in str(raised.value)
