"""Layers of Transformer-XL, as in Dai et al., 2019.

Where to find the paper in the code:

- Section 3.2, recurrence over segments and its stop-gradient `SG`:
  `Memory.extend` in `memory/memory_stack.py`, where a segment is added.
- Section 3.3, terms (a) to (d) of the attention score:
  `attention/relative.py` (projections) and `compute/definition.py` (sum).
- Section 3.3, the sinusoids `R`: `attention/position_encoding.py`.
- Section 3.3, one whole block: `decoder_block.py`.
- Appendix B, the shift from distances to keys: `compute/relative_shift.py`;
  `compute/__init__.py` lists its faster forms.
- Clusters of the adaptive softmax (Grave et al., 2017) and of the adaptive
  embedding (Baevski and Auli, 2019): `softmax/`.

`compute/` holds faster implementations of the same attention.
"""

from txl_keras.layers.attention.causal import CausalMultiHeadAttention
from txl_keras.layers.attention.position_encoding import (
    RelativePositionEncoding,
)
from txl_keras.layers.attention.relative import RelativeMultiHeadAttention
from txl_keras.layers.attention.shaw import ShawMultiHeadAttention
from txl_keras.layers.attention.two_stream import TwoStreamRelativeAttention
from txl_keras.layers.compute.relative_shift import relative_shift
from txl_keras.layers.decoder_block import DecoderBlock
from txl_keras.layers.memory.memory_stack import Memory
from txl_keras.layers.memory.memory_stack import MemoryStack
from txl_keras.layers.memory.projected_memory import Past
from txl_keras.layers.memory.projected_memory import ProjectedMemory
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.softmax.adaptive_embedding import AdaptiveEmbedding
from txl_keras.layers.softmax.adaptive_softmax import AdaptiveSoftmax
from txl_keras.layers.two_stream_block import TwoStreamBlock

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "CausalMultiHeadAttention",
    "DecoderBlock",
    "Memory",
    "MemoryStack",
    "Past",
    "ProjectedMemory",
    "RelativeMultiHeadAttention",
    "RelativePositionEncoding",
    "RowDropout",
    "ShawMultiHeadAttention",
    "TwoStreamBlock",
    "TwoStreamRelativeAttention",
    "relative_shift",
]
