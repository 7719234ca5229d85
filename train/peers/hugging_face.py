r"""Times Hugging Face's Transformer-XL, for train/benchmark.py.

Their Transformer-XL needs an old version of transformers, so this program runs
in an environment of its own and does not import txl_keras:

    python3.11 -m venv peer_env
    peer_env/bin/pip install torch==2.13.0 transformers==4.35.2 "numpy<2"

It builds the model with random weights (nothing is downloaded) from the JSON
object in its argument. The last line that it prints is a JSON object with the
seconds per call of the model, eager and through torch.compile; the latter is
left out if it fails. A training step is forward, backward, clipping to a norm
of 0.25, and Adam. Everything runs in float32, because Hugging Face's loss fails
under autocast to bfloat16.
"""

import json
import logging
import sys
import time

import torch
from transformers import TransfoXLConfig
from transformers import TransfoXLLMHeadModel

LEARNING_RATE = 1e-4
CLIP_NORM = 0.25


def main():
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["num_threads"])
    torch.manual_seed(0)
    # Silences torch.compile's warnings about the many graph breaks.
    torch._logging.set_logs(all=logging.ERROR)
    is_training = settings["experiment"] == "training"
    torch.set_grad_enabled(is_training)
    model = TransfoXLLMHeadModel(_config(settings)).train(is_training)
    seconds = {"hugging_face": _time(model, settings)}
    if settings["experiment"] != "generation":
        try:
            compiled = torch.compile(model)
            seconds["hugging_face compiled"] = _time(compiled, settings)
        except Exception as error:
            print(f"torch.compile failed: {error}", file=sys.stderr)
    print(json.dumps(seconds))


def _time(model, settings):
    """Returns the seconds of each call, after one warm-up turn."""
    rows, length = settings["batch_size"], settings["segment_length"]
    # `mems` has their layout. It is full from the start, so that the first
    # token costs as much as any later one.
    shape = settings["memory_length"], rows, settings["hidden_dim"]
    mems = [torch.randn(shape) for _ in range(settings["num_layers"])]
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    token, seconds = _tokens(settings, 1), []
    for _ in range((1 + settings["turns"]) * settings["calls_per_turn"]):
        tokens = _tokens(settings, length)
        start = time.perf_counter()
        if settings["experiment"] == "generation":
            output = model(input_ids=token, mems=mems)
            token = output.prediction_scores[:, -1].argmax(-1, keepdim=True)
        else:
            output = model(input_ids=tokens, mems=mems, labels=tokens)
        mems = output.mems
        if settings["experiment"] == "training":
            optimizer.zero_grad()
            output.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds[settings["calls_per_turn"] :]


def _tokens(settings, length):
    """Draws ids with Zipf frequencies: id r about 1 / r of the time."""
    uniform = torch.rand(settings["batch_size"], length)
    return (settings["vocabulary_size"] ** uniform - 1).long()


def _config(settings):
    return TransfoXLConfig(
        vocab_size=settings["vocabulary_size"],
        cutoffs=settings["cutoffs"],
        d_model=settings["hidden_dim"],
        d_embed=settings["hidden_dim"],
        n_head=settings["num_heads"],
        d_head=settings["head_dim"],
        d_inner=settings["intermediate_dim"],
        div_val=settings["div_val"],
        n_layer=settings["num_layers"],
        mem_len=settings["memory_length"],
        clamp_len=settings["clamp_length"] or 0,
        same_length=bool(settings["same_length"]),
        dropout=settings["dropout"],
        dropatt=settings["attention_dropout"],
    )


if __name__ == "__main__":
    main()
