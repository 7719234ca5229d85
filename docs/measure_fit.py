"""Measures `fit` of a preset on any backend of Keras, then trains for a while.

    KERAS_BACKEND=jax python docs/measure_fit.py --minutes=10 --text=enwik8

Prints the median step, tokens/s, TFLOP/s and the peak memory of a GPU. With
`--minutes` and `--text`, it then trains on the bytes of a file, of which the
last tenth is held out, and prints bits per byte.
"""

import argparse
import math
import os
import statistics
import time

import keras
import numpy as np

from txl_keras.data import Segments
from txl_keras.models import TransformerXLCausalLM


def main():
    args = arguments()
    model = TransformerXLCausalLM.from_preset(
        args.preset, vocabulary_size=256, dtype=args.dtype,
        **({} if args.num_layers is None else {"num_layers": args.num_layers}),
    )  # fmt: skip
    shape = args.batch_size * args.steps, args.segment_length
    x, y = np.random.default_rng(0).integers(256, size=(2, *shape))
    model.compile(keras.optimizers.Adam(1e-4))
    timer = Timer()
    model.fit(
        x, y, batch_size=args.batch_size, epochs=2, verbose=0, callbacks=[timer]
    )
    # The first epoch compiles.
    seconds = statistics.median(np.diff(timer.ends[args.steps :]))
    num_tokens = args.batch_size * args.segment_length
    print(
        f"{keras.backend.backend()}, {args.dtype}, {args.batch_size} x "
        f"{args.segment_length}: first step {timer.ends[0] - timer.start:.1f} "
        f"s, median step {1e3 * seconds:.1f} ms, {num_tokens / seconds:,.0f} "
        f"tokens/s, {flops(model, args) / seconds / 1e12:.2f} TFLOP/s, peak "
        f"memory {peak_memory()}"
    )
    if args.minutes:
        train(model, args, seconds)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="enwik8_base")
    parser.add_argument(
        "--num_layers", type=int, help="by default the preset's"
    )
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--batch_size", type=int, default=24)
    parser.add_argument("--segment_length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20, help="at least 3")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--text", help="a file of bytes, such as enwik8")
    args = parser.parse_args()
    if args.minutes and not args.text:
        parser.error("--text must be given with --minutes")
    if args.text:
        needed = 10 * (args.batch_size * args.segment_length + 1)
        size = os.path.getsize(args.text)
        if size < needed:
            parser.error(f"--text must have {needed:,} bytes, not {size:,}")
    if args.steps < 3:
        parser.error(f"--steps must be at least 3. Received: {args.steps}")
    return args


class Timer(keras.callbacks.Callback):
    """Notes when each step has ended, on the device, too."""

    def on_train_begin(self, logs=None):
        self.start, self.ends = time.perf_counter(), []

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])  # waits for it
        self.ends.append(time.perf_counter())


class StopAfter(keras.callbacks.Callback):
    """Ends training some minutes after its first step, which compiles."""

    def __init__(self, minutes):
        super().__init__()
        self._seconds, self._start = 60 * minutes, None

    def on_train_batch_end(self, batch, logs=None):
        self._start = self._start or time.monotonic()
        is_over = time.monotonic() > self._start + self._seconds
        self.model.stop_training = is_over


def train(model, args, seconds):
    """Trains on a file of bytes, and prints what is lost on its last tenth."""
    ids = np.fromfile(args.text, np.uint8)
    end = len(ids) * 9 // 10
    sizes = args.batch_size, args.segment_length
    held_out = Segments(ids[end:], *sizes, drop_remainder=True)
    steps = int(60 * args.minutes / seconds)
    model.compile(
        keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(
                0.0, steps, warmup_target=2.5e-4, warmup_steps=steps // 10
            ),
            global_clipnorm=0.25,
        )
    )
    data = Segments(ids[:end], *sizes, drop_remainder=True)
    epochs = math.ceil(steps / len(data))
    model.fit(
        data, epochs=epochs, verbose=0, callbacks=[StopAfter(args.minutes)]
    )
    loss = model.evaluate(held_out, return_dict=True, verbose=0)["loss"]
    print(
        f"{int(model.optimizer.iterations):,} steps of {steps:,} planned, "
        f"{loss / math.log(2):.4f} bits per byte of the last {len(ids) - end:,}"
    )


def flops(model, args):
    """Counts operations of a step as `training.utilization.model_flops`."""
    backbone, length = model.backbone, args.segment_length
    layer = backbone.layer_flops(length, backbone.memory_length)
    softmax = 2 * length * backbone.hidden_dim * backbone.vocabulary_size
    return 3 * args.batch_size * (backbone.num_layers * layer + softmax)


def peak_memory():
    backend, peak = keras.backend.backend(), None
    if backend == "jax":
        import jax

        stats = jax.local_devices()[0].memory_stats() or {}
        peak = stats.get("peak_bytes_in_use")
    elif backend == "torch":
        import torch

        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
    else:
        import tensorflow as tf

        if tf.config.list_logical_devices("GPU"):
            peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return "unknown" if peak is None else f"{peak / 2**30:.1f} GiB"


if __name__ == "__main__":
    main()
