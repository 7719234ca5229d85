"""Scores of corpora, dynamic evaluation, and attention maps."""

from txl_keras.evaluation.attention_maps import attention_by_distance
from txl_keras.evaluation.attention_maps import attention_maps
from txl_keras.evaluation.context_losses import context_losses
from txl_keras.evaluation.context_losses import spread_positions
from txl_keras.evaluation.dynamic_evaluator import DynamicEvaluator
from txl_keras.evaluation.dynamic_evaluator import collect_mean_square
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.evaluation.permutation_evaluator import PermutationEvaluator
from txl_keras.evaluation.recl import effective_context_lengths
from txl_keras.evaluation.report import position_curve
from txl_keras.evaluation.surprise import surprise_page

__all__ = [
    "DynamicEvaluator",
    "Evaluator",
    "PermutationEvaluator",
    "attention_by_distance",
    "attention_maps",
    "collect_mean_square",
    "context_losses",
    "effective_context_lengths",
    "position_curve",
    "spread_positions",
    "surprise_page",
    "warmup_segments",
]
