"""Layers of Transformer-XL, as in Dai et al., 2019.

Where to find the paper in the code:

- Section 3.2, recurrence over segments and its stop-gradient `SG`:
  `Memory.extend` in `memory.py`, which appends a segment.
- Section 3.3, terms (a) to (d) of the attention score: `relative.py`; they are
  summed in `compute/definition.py`. `causal.py` creates u, v and the
  projections, including `W_k,E` and `W_k,R`.
- Section 3.3, the sinusoids `R`: `position_encoding.py`.
- Section 3.3, one whole block: `decoder_block.py`.
- Appendix B, the shift from distances to keys: `relative_shift` in
  `compute/definition.py`; `compute/__init__.py` lists its faster forms.
- Clusters of the adaptive softmax (Grave et al., 2017): `adaptive_softmax.py`;
  of the adaptive embedding (Baevski and Auli, 2019): `adaptive_embedding.py`.
"""

import txl_keras.keras_without_log  # noqa: F401
from txl_keras.layers.adaptive_embedding import AdaptiveEmbedding
from txl_keras.layers.adaptive_softmax import AdaptiveSoftmax
from txl_keras.layers.causal import CausalMultiHeadAttention
from txl_keras.layers.compute.definition import relative_shift
from txl_keras.layers.decoder_block import DecoderBlock
from txl_keras.layers.kv_cache import Past
from txl_keras.layers.kv_cache import ProjectedMemory
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import MemoryStack
from txl_keras.layers.position_encoding import RelativePositionEncoding
from txl_keras.layers.relative import RelativeMultiHeadAttention
from txl_keras.layers.relative import ShawMultiHeadAttention
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.two_stream import TwoStreamBlock
from txl_keras.layers.two_stream import TwoStreamRelativeAttention

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
