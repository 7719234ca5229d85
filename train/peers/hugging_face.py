r"""Hugging Face's Transformer-XL, to be timed next to this one.

Their Transformer-XL needs an old version of transformers, so this program
has an environment of its own and imports nothing of txl_keras:

    python3.11 -m venv peer_env
    peer_env/bin/pip install torch==2.13.0 transformers==4.35.2 "numpy<2"

It builds the model with random weights (nothing is downloaded) from the
JSON object in its argument, says that it is ready, and then answers
requests. Each is a line of JSON on stdin, each answer a line on stdout.

    $ peer_env/bin/python train/peers/hugging_face.py '{
        "vocabulary_size": 204, "num_layers": 12, "num_heads": 8,
        "hidden_dim": 512, "head_dim": 64, "intermediate_dim": 2048,
        "memory_length": 2100, "same_length": true, "clamp_length": 820,
        "cutoffs": [], "div_val": 1, "batch_size": 1, "num_threads": 2,
        "seed": 0}'
    {"ready": true, "num_weights": 41066700}
    {"task": "generate", "num_tokens": 3}
    {"seconds": [0.41, 0.36, 0.38]}
    {"task": "evaluate", "segment_length": 80, "num_segments": 1}
    {"seconds": [0.53]}
    {"task": "exit"}

A bad request is answered with `{"error": message}`; `exit`, or the end of
stdin, ends the program without an answer. `"clamp_length": 0` does not
clamp. A model without cutoffs wants `"div_val": 1`: with a larger one,
Hugging Face projects the only table from `hidden_dim` to `hidden_dim`.
"""

import json
import sys
import time

import torch
from transformers import TransfoXLConfig
from transformers import TransfoXLLMHeadModel

# The least value of each whole number.
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
REQUEST_LEAST = {
    "generate": {"num_tokens": 1},
    # The labels are shifted inside: one token has nothing to predict.
    "evaluate": {"segment_length": 2, "num_segments": 1},
    "exit": {},
}


class Peer:
    """The model with a full memory, which all requests carry on."""

    def __init__(self, config):
        torch.manual_seed(config["seed"])
        self.vocabulary_size = config["vocabulary_size"]
        self.batch_size = config["batch_size"]
        self.model = TransfoXLLMHeadModel(_hugging_face_config(config)).eval()
        # The layout is theirs. Full from the start: a token costs the same
        # as any later one.
        shape = config["memory_length"], self.batch_size, config["hidden_dim"]
        self.mems = [torch.randn(shape) for _ in range(config["num_layers"])]
        self.token = self._random_tokens(1)

    def num_weights(self):
        """Shared ones count once."""
        return sum(weight.numel() for weight in self.model.parameters())

    def generate(self, num_tokens):
        """The seconds of each token, of which the next one is chosen."""
        return [_seconds(self._write_token) for _ in range(num_tokens)]

    def evaluate(self, segment_length, num_segments):
        """The seconds of each segment, with its losses."""
        seconds = []
        for _ in range(num_segments):
            tokens = self._random_tokens(segment_length)
            seconds.append(_seconds(self._score, tokens))
        return seconds

    def _write_token(self):
        output = self.model(input_ids=self.token, mems=self.mems)
        self.mems = output.mems
        self.token = output.prediction_scores[:, -1].argmax(-1, keepdim=True)

    def _score(self, tokens):
        output = self.model(input_ids=tokens, mems=self.mems, labels=tokens)
        self.mems = output.mems

    def _random_tokens(self, length):
        """Ids as frequent as words are: word r of V with a share of 1 / r."""
        uniform = torch.rand(self.batch_size, length)
        return (self.vocabulary_size**uniform - 1).long()


def main():
    config = _read_config(sys.argv[1:])
    torch.set_num_threads(config["num_threads"])
    with torch.no_grad():
        peer = Peer(config)
        _write({"ready": True, "num_weights": peer.num_weights()})
        for line in sys.stdin:
            try:
                task, sizes = _read_request(line)
            except ValueError as error:
                _write({"error": str(error)})
                continue
            if task == "exit":
                return
            _write({"seconds": getattr(peer, task)(**sizes)})


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
    )


def _seconds(function, *args):
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def _read_config(arguments):
    """The configuration, checked; a bad one ends the program."""
    try:
        if len(arguments) != 1:
            raise ValueError(
                "The one argument must be the configuration as JSON. "
                f"Received: {len(arguments)} arguments"
            )
        config = _read_object(arguments[0])
        _check_names(config, {*CONFIG_LEAST, "same_length", "cutoffs"})
        _check_numbers(config, CONFIG_LEAST)
        _check_same_length(config["same_length"])
        _check_cutoffs(config["cutoffs"], config["vocabulary_size"])
    except ValueError as error:
        sys.exit(f"{error}\nSee the top of {__file__}")
    return config


def _read_request(line):
    """The task and its sizes by name, checked."""
    request = _read_object(line)
    task = request.get("task")
    # A list, since what was sent may be unhashable.
    if task not in list(REQUEST_LEAST):
        raise ValueError(
            f"`task` must be one of {list(REQUEST_LEAST)}. "
            f"Received: task={task!r}"
        )
    least = REQUEST_LEAST[task]
    _check_names(request, {"task", *least})
    _check_numbers(request, least)
    return task, {name: request[name] for name in least}


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
        # `isinstance` would take true and false.
        if type(value) is not int or value < minimum:
            raise ValueError(
                f"`{name}` must be a whole number, at least {minimum}. "
                f"Received: {name}={value!r}"
            )


def _check_same_length(same_length):
    if not isinstance(same_length, bool):
        raise ValueError(
            "`same_length` must be true or false. "
            f"Received: same_length={same_length!r}"
        )


def _check_cutoffs(cutoffs, vocabulary_size):
    if (
        not isinstance(cutoffs, list)
        or not all(type(cutoff) is int for cutoff in cutoffs)
        or cutoffs != sorted({*cutoffs})
        or not all(0 < cutoff < vocabulary_size for cutoff in cutoffs)
    ):
        raise ValueError(
            "`cutoffs` must be a list of whole numbers that grow, above 0 "
            f"and below the vocabulary's size {vocabulary_size}. "
            f"Received: cutoffs={cutoffs!r}"
        )


def _write(answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
