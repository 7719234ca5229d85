"""Dynamic evaluation: a model goes on learning from the text that it scores."""

from txl_keras.extending import register
from txl_keras.extensions.dynamic_evaluation.evaluator import DynamicEvaluator
from txl_keras.extensions.dynamic_evaluation.evaluator import (
    collect_mean_square,
)
from txl_keras.extensions.dynamic_evaluation.flags import Dynamic

__all__ = ["DynamicEvaluator", "collect_mean_square"]

register("evaluator", dynamic=Dynamic)
