r"""Serves Hugging Face's Transformer-XL to train/benchmark.py, to be timed.

Their Transformer-XL needs an old version of transformers, so this program runs
in an environment of its own and does not import txl_keras:

    python3.11 -m venv peer_env
    peer_env/bin/pip install torch==2.13.0 transformers==4.35.2 "numpy<2"

It builds the model with random weights (nothing is downloaded) from the JSON
object in its argument, prints that it is ready, and then answers requests.
Each request is a line of JSON on stdin, each answer a line of JSON on stdout:

    {"ready": true}
    {"task": "generate", "num_tokens": 3}
    {"seconds": [0.41, 0.36, 0.38]}
    {"task": "evaluate", "segment_length": 80, "num_segments": 1}
    {"seconds": [0.53]}
    {"task": "train", "segment_length": 80, "num_steps": 2, "compiled": true}
    {"seconds": [61.4, 0.98]}

A training step is forward, backward, clipping to a norm of 0.25, and Adam.
`"compiled": true` uses torch.compile, and the first time includes the
compilation; if it fails, the answer is `{"cannot": message}`. Everything runs
in float32, because their loss fails under autocast to bfloat16. A bad request
is answered with `{"error": message}`; the end of stdin ends the program.
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


class CannotCompile(Exception):
    """Reports that torch.compile failed."""


class Peer:
    """Holds the model and a full memory that carries over between requests."""

    def __init__(self, config):
        torch.manual_seed(0)
        self.vocabulary_size = config["vocabulary_size"]
        self.batch_size = config["batch_size"]
        self.model = TransfoXLLMHeadModel(_hugging_face_config(config)).eval()
        self.optimizer = None  # created by the first training request
        self.compiled_model = None
        # `mems` has their layout. It is full from the start, so that the first
        # token costs as much as any later one.
        shape = config["memory_length"], self.batch_size, config["hidden_dim"]
        self.mems = [torch.randn(shape) for _ in range(config["num_layers"])]
        self.token = self._random_tokens(1)

    def generate(self, num_tokens):
        """Writes tokens greedily; returns the seconds of each."""
        return [_seconds(self._write_token) for _ in range(num_tokens)]

    def evaluate(self, segment_length, num_segments, compiled=False):
        """Scores segments; returns the seconds of each."""
        self.model.eval()
        return self._time(self._score, segment_length, num_segments, compiled)

    def train(self, segment_length, num_steps, compiled=False):
        """Trains on random tokens; returns the seconds of each step."""
        self.model.train()
        if self.optimizer is None:
            self.optimizer = torch.optim.Adam(
                self.model.parameters(), LEARNING_RATE
            )
        with torch.enable_grad():
            return self._time(self._step, segment_length, num_steps, compiled)

    def _time(self, function, segment_length, times, compiled):
        model = self.model
        if compiled:
            if self.compiled_model is None:
                self.compiled_model = torch.compile(model)
            model = self.compiled_model
        seconds = []
        for _ in range(times):
            tokens = self._random_tokens(segment_length)
            try:
                seconds.append(_seconds(function, model, tokens))
            except Exception as error:
                if not compiled:
                    raise
                raise CannotCompile(
                    f"{type(error).__name__}: {error}"
                ) from error
        return seconds

    def _write_token(self):
        output = self.model(input_ids=self.token, mems=self.mems)
        self.mems = output.mems
        self.token = output.prediction_scores[:, -1].argmax(-1, keepdim=True)

    def _score(self, model, tokens):
        output = model(input_ids=tokens, mems=self.mems, labels=tokens)
        self.mems = output.mems
        return output.loss

    def _step(self, model, tokens):
        self.optimizer.zero_grad()
        self._score(model, tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()

    def _random_tokens(self, length):
        """Draws ids with Zipf frequencies: id r about 1 / r of the time."""
        uniform = torch.rand(self.batch_size, length)
        return (self.vocabulary_size**uniform - 1).long()


def main():
    config = json.loads(sys.argv[1])
    torch.set_num_threads(config["num_threads"])
    # Silences torch.compile's warnings of the many graph breaks.
    torch._logging.set_logs(all=logging.ERROR)
    with torch.no_grad():
        peer = Peer(config)
        _write({"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            task = getattr(peer, request.pop("task"))
            try:
                _write({"seconds": task(**request)})
            except CannotCompile as error:
                _write({"cannot": str(error)})
            except Exception as error:
                _write({"error": f"{type(error).__name__}: {error}"})


def _hugging_face_config(config):
    return TransfoXLConfig(
        vocab_size=config["vocabulary_size"],
        cutoffs=config["cutoffs"],
        d_model=config["hidden_dim"],
        d_embed=config["hidden_dim"],
        n_head=config["num_heads"],
        d_head=config["head_dim"],
        d_inner=config["intermediate_dim"],
        div_val=config["div_val"],
        n_layer=config["num_layers"],
        mem_len=config["memory_length"],
        clamp_len=config["clamp_length"] or 0,
        same_length=bool(config["same_length"]),
        dropout=config["dropout"],
        dropatt=config["attention_dropout"],
    )


def _seconds(function, *args):
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def _write(answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
