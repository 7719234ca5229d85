"""Layers to build Transformer-XL models from, in the order data passes."""

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
