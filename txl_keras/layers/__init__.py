"""Layers to build Transformer-XL models from, in the order data passes."""

from txl_keras.layers.decoder_block import DecoderBlock
from txl_keras.layers.memory_stack import Memory
from txl_keras.layers.memory_stack import MemoryStack
from txl_keras.layers.relative_multi_head_attention import (
    RelativeMultiHeadAttention,
)
from txl_keras.layers.relative_multi_head_attention import relative_shift
from txl_keras.layers.relative_position_encoding import RelativePositionEncoding
from txl_keras.layers.row_dropout import RowDropout

__all__ = [
    "DecoderBlock",
    "Memory",
    "MemoryStack",
    "RelativeMultiHeadAttention",
    "RelativePositionEncoding",
    "RowDropout",
    "relative_shift",
]
