"""Statistics from checkpoints of the original TensorFlow 1 code."""

import numpy as np

from txl_keras.checkpoints.tf1 import load_slot
from txl_keras.types import PathLike
from txl_keras.weights import weights_by_name


def load_tf1_mean_square(prefix: PathLike, config: dict) -> dict:
    """Loads Adam's mean squares of gradients from a TensorFlow 1 checkpoint.

    The published script of Krause et al., 2019, uses these with the weights of
    the same checkpoint, and not the statistics that it collects.

    Args:
        prefix, config: See `txl_keras.checkpoints.load_tf1`.

    Returns:
        Dictionary of float32 arrays by the names of weights, for
        `DynamicEvaluator(mean_square=...)`.

    Example, with files that are not part of the package:

    ```
    model = load_tf1("model.ckpt-0", "config.json")
    mean_square = load_tf1_mean_square("model.ckpt-0", "config.json")
    evaluator = DynamicEvaluator(  # the published settings for enwik8
        model, 1.2e-5, mean_square, decay=24, epsilon=1e-4, clip_decay=False,
        segment_length=128,
    )
    ```
    """
    model = load_slot(prefix, config, None, {}, slot="/Adam_1")
    return {
        name: np.asarray(weight, np.float32)
        for name, weight in weights_by_name(model).items()
    }
