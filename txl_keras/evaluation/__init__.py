"""Scores of corpora, losses by context length, and attention maps."""

import txl_keras.needs_tensorflow  # noqa: F401

from txl_keras.evaluation.attention_maps import attention_by_distance
from txl_keras.evaluation.attention_maps import attention_maps
from txl_keras.evaluation.context_losses import context_losses
from txl_keras.evaluation.context_losses import spread_positions
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.evaluation.permutation_evaluator import PermutationEvaluator
from txl_keras.evaluation.recl import effective_context_lengths
from txl_keras.evaluation.report import position_curve

__all__ = [
    "Evaluator",
    "PermutationEvaluator",
    "attention_by_distance",
    "attention_maps",
    "context_losses",
    "effective_context_lengths",
    "position_curve",
    "spread_positions",
    "warmup_segments",
]
