r"""Serves Hugging Face's Transformer-XL to train/benchmark.py, to be timed.

Their Transformer-XL needs an old version of transformers, so this program runs
in an environment of its own and does not import txl_keras:

    python3.11 -m venv peer_env
    peer_env/bin/pip install torch==2.13.0 transformers==4.35.2 "numpy<2"

It builds the model with random weights (nothing is downloaded) from the JSON
object in its argument, prints that it is ready, and then answers requests.
Each request is a line of JSON on stdin, each answer a line of JSON on stdout.

    $ peer_env/bin/python train/peers/hugging_face.py '{
        "vocabulary_size": 204, "num_layers": 12, "num_heads": 8,
        "hidden_dim": 512, "head_dim": 64, "intermediate_dim": 2048,
        "memory_length": 2100, "same_length": true, "clamp_length": 820,
        "cutoffs": [], "div_val": 1, "batch_size": 1, "num_threads": 2,
        "seed": 0, "dropout": 0, "attention_dropout": 0}'
    {"ready": true, "num_weights": 41066700}
    {"task": "generate", "num_tokens": 3}
    {"seconds": [0.41, 0.36, 0.38]}
    {"task": "evaluate", "segment_length": 80, "num_segments": 1, \
        "compiled": false}
    {"seconds": [0.53]}
    {"task": "train", "segment_length": 80, "num_steps": 2, "compiled": true}
    {"seconds": [61.4, 0.98]}

A training step is forward, backward, clipping to a norm of 0.25, and Adam.
`"compiled": true` uses torch.compile, and the first time includes the
compilation; if it fails, the answer is `{"cannot": message}`. Everything runs
in float32, because their loss fails under autocast to bfloat16. A bad request
is answered with `{"error": message}`; the end of stdin ends the program.
`"clamp_length": 0` does not clamp. A model without
cutoffs needs `"div_val": 1`: with a larger value Hugging Face projects the only
table from `hidden_dim` to `hidden_dim`.
"""

import json
import logging
import sys
import time

import torch
from transformers import TransfoXLConfig
from transformers import TransfoXLLMHeadModel

# The smallest valid value of each integer.
CONFIG_LEAST = {
    "vocabulary_size": 1,
    "num_layers": 1,
    "num_heads": 1,
    "hidden_dim": 1,
    "head_dim": 1,
    "intermediate_dim": 1,
    "memory_length": 1,
    "clamp_length": 0,
    "div_val": 1,
    "batch_size": 1,
    "num_threads": 1,
    "seed": 0,
}
CONFIG_RATES = ("dropout", "attention_dropout")
CONFIG_BOOLEANS = ("same_length",)
REQUEST_LEAST = {
    "generate": {"num_tokens": 1},
    # The model shifts the labels itself, so one token gives no target.
    "evaluate": {"segment_length": 2, "num_segments": 1},
    "train": {"segment_length": 2, "num_steps": 1},
}
# Tasks whose requests have a `compiled` field.
COMPILED = ("evaluate", "train")
LEARNING_RATE = 1e-4
CLIP_NORM = 0.25


class CannotCompile(Exception):
    """Reports that torch.compile failed."""


class Peer:
    """Holds the model and a full memory that carries over between requests."""

    def __init__(self, config):
        torch.manual_seed(config["seed"])
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

    def num_weights(self):
        """Returns the number of weights; shared ones count once."""
        return sum(weight.numel() for weight in self.model.parameters())

    def generate(self, num_tokens):
        """Writes tokens greedily; returns the seconds of each."""
        return [_seconds(self._write_token) for _ in range(num_tokens)]

    def evaluate(self, segment_length, num_segments, compiled):
        """Scores segments; returns the seconds of each."""
        self.model.eval()
        return self._time(self._score, segment_length, num_segments, compiled)

    def train(self, segment_length, num_steps, compiled):
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
    config = _read_config(sys.argv[1:])
    torch.set_num_threads(config["num_threads"])
    # Silences torch.compile's warnings of the many graph breaks.
    torch._logging.set_logs(all=logging.ERROR)
    with torch.no_grad():
        peer = Peer(config)
        _write({"ready": True, "num_weights": peer.num_weights()})
        for line in sys.stdin:
            try:
                task, sizes = _read_request(line)
            except ValueError as error:
                _write({"error": str(error)})
                continue
            try:
                _write({"seconds": getattr(peer, task)(**sizes)})
            except CannotCompile as error:
                _write({"cannot": str(error)})


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
        clamp_len=config["clamp_length"],
        same_length=config["same_length"],
        dropout=config["dropout"],
        dropatt=config["attention_dropout"],
    )


def _seconds(function, *args):
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def _read_config(arguments):
    """Returns the checked configuration; a bad one ends the program."""
    try:
        if len(arguments) != 1:
            raise ValueError(
                "The only argument must be the configuration as JSON. "
                f"Received: {len(arguments)} arguments"
            )
        config = _read_object(arguments[0])
        _check_names(
            config,
            {*CONFIG_LEAST, *CONFIG_RATES, *CONFIG_BOOLEANS, "cutoffs"},
        )
        _check_numbers(config, CONFIG_LEAST)
        _check_rates(config)
        _check_booleans(config, CONFIG_BOOLEANS)
        _check_cutoffs(config["cutoffs"], config["vocabulary_size"])
    except ValueError as error:
        sys.exit(f"{error}\nSee the top of {__file__}")
    return config


def _read_request(line):
    """Returns a request's task and its checked sizes by name."""
    request = _read_object(line)
    task = request.get("task")
    # A list, because the received value may be unhashable.
    if task not in list(REQUEST_LEAST):
        raise ValueError(
            f"`task` must be one of {list(REQUEST_LEAST)}. "
            f"Received: task={task!r}"
        )
    least = REQUEST_LEAST[task]
    booleans = ["compiled"] if task in COMPILED else []
    _check_names(request, {"task", *least, *booleans})
    _check_numbers(request, least)
    _check_booleans(request, booleans)
    return task, {name: request[name] for name in (*least, *booleans)}


def _read_object(text):
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"Not JSON ({error}). Received: {text!r}") from None
    if not isinstance(value, dict):
        raise ValueError(f"Must be a JSON object. Received: {text!r}")
    return value


def _check_names(values, names):
    if values.keys() != names:
        raise ValueError(
            f"Missing: {sorted(names - values.keys())}, "
            f"unknown: {sorted(values.keys() - names)}"
        )


def _check_numbers(values, least):
    for name, minimum in least.items():
        value = values[name]
        # `isinstance` would accept true and false.
        if type(value) is not int or value < minimum:
            raise ValueError(
                f"`{name}` must be an integer, at least {minimum}. "
                f"Received: {name}={value!r}"
            )


def _check_rates(config):
    for name in CONFIG_RATES:
        value = config[name]
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise ValueError(
                f"`{name}` must be a number in [0, 1). "
                f"Received: {name}={value!r}"
            )


def _check_booleans(values, names):
    for name in names:
        if not isinstance(values[name], bool):
            raise ValueError(
                f"`{name}` must be true or false. "
                f"Received: {name}={values[name]!r}"
            )


def _check_cutoffs(cutoffs, vocabulary_size):
    if (
        not isinstance(cutoffs, list)
        or not all(type(cutoff) is int for cutoff in cutoffs)
        or cutoffs != sorted({*cutoffs})
        or not all(0 < cutoff < vocabulary_size for cutoff in cutoffs)
    ):
        raise ValueError(
            "`cutoffs` must be a list of increasing integers above 0 and "
            f"below the vocabulary size {vocabulary_size}. "
            f"Received: cutoffs={cutoffs!r}"
        )


def _write(answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
