"""Transformer-XL, XLNet and LSTM models, built from the layers."""

from typing import TYPE_CHECKING

from txl_keras.lazy import on_first_use

if TYPE_CHECKING:
    from txl_keras.models.hub import upload_preset
    from txl_keras.models.lstm_backbone import LSTMBackbone
    from txl_keras.models.segment_reader import SegmentReader
    from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
    from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM
    from txl_keras.models.transformer_xl_text_classifier import (
        TransformerXLTextClassifier,
    )
    from txl_keras.models.vocabulary import extend_vocabulary
    from txl_keras.models.xlnet_backbone import XLNetBackbone
    from txl_keras.models.xlnet_permutation_lm import XLNetPermutationLM

__all__ = [
    "LSTMBackbone",
    "SegmentReader",
    "TransformerXLBackbone",
    "TransformerXLCausalLM",
    "TransformerXLTextClassifier",
    "XLNetBackbone",
    "XLNetPermutationLM",
    "extend_vocabulary",
    "upload_preset",
]
__getattr__, __dir__ = on_first_use(__name__)
