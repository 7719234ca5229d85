"""Compiles steps for TPU slices without a TPU, and has a kernel for TPUs."""

from txl_keras.extending import register
from txl_keras.tpu import pallas
from txl_keras.tpu.options import Compilation

register("attention", pallas=pallas)
register("train", compile_only=Compilation)
