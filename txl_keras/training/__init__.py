"""Training without the scripts: strategy, optimizer, step, checkpoints."""

import txl_keras.needs_tensorflow  # noqa: F401

from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.host_memory import keep_freed_memory
from txl_keras.training.schedules import build_schedule
from txl_keras.training.strategy import create_strategy
from txl_keras.training.trainer import Trainer

__all__ = [
    "Checkpoints",
    "Trainer",
    "build_schedule",
    "create_strategy",
    "keep_freed_memory",
]
