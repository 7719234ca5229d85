"""Transformer-XL, XLNet and LSTM models, built from the layers."""

from txl_keras.extending import register
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

# By the names that `--backbone` takes.
register(
    "backbone",
    lstm=LSTMBackbone,
    transformer_xl=TransformerXLBackbone,
    xlnet=XLNetBackbone,
)
register(
    "model",
    causal_lm=TransformerXLCausalLM,
    permutation_lm=XLNetPermutationLM,
    text_classifier=TransformerXLTextClassifier,
)

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
