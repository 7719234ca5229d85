"""Runs a benchmark's peer, a program in another Python environment."""

import contextlib
import functools
import json
import os
import subprocess

from benchmarks.turns import CannotRunError


@contextlib.contextmanager
def open_peer(script, python, model, batch_size):
    """Runs a peer, such as train/peers/hugging_face.py, in a context."""
    # Yields a function of a task and its sizes (by keyword) that returns a list
    # of seconds, and raises `CannotRunError` if the peer cannot compile it.
    _check_model(model)
    process = subprocess.Popen(
        [python, "-Wignore", script, json.dumps(_sizes(model, batch_size))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def answer():
        line = process.stdout.readline()
        try:
            answered = json.loads(line) if line else {"error": "it has ended"}
        except json.JSONDecodeError:
            answered = {"error": f"it printed no JSON but {line.strip()!r}"}
        if "error" in answered:
            raise RuntimeError(
                f"The peer {script}, run by {python}, failed: "
                f"{answered['error']}"
            )
        if "cannot" in answered:
            raise CannotRunError(answered["cannot"])
        return answered

    def ask(task, **sizes):
        request = {"task": task, **sizes}
        print(json.dumps(request), file=process.stdin, flush=True)
        return answer()["seconds"]

    try:
        answer()  # the message that the peer is ready
        yield ask
    finally:
        process.kill()
        process.wait()


def peer_contenders(peer, task, **sizes):
    """Returns a peer's contenders for `take_turns`: eager and compiled."""
    if peer is None:
        return {}
    ask = functools.partial(peer, task, **sizes)
    return {
        "hugging_face": functools.partial(ask, compiled=False),
        "hugging_face compiled": functools.partial(ask, compiled=True),
    }


def _check_model(model):
    """Checks that the peer can build the same model."""
    # It would ignore these options and time another model.
    backbone = model.backbone
    parts = {
        f"attention_type={backbone.attention_type}": (
            backbone.attention_type != "relative"
        ),
        "normalize_first": backbone.normalize_first,
        "normalize_output": backbone.normalize_output,
    }
    unsupported = [name for name, is_used in parts.items() if is_used]
    if unsupported:
        raise ValueError(
            "`peer` supports only relative attention, with a layer norm after "
            "each sublayer and none after the last block. Received: "
            f"{', '.join(unsupported)}"
        )


def _sizes(model, batch_size):
    backbone = model.backbone
    embedding = backbone.token_embedding
    return {
        "vocabulary_size": backbone.vocabulary_size,
        "num_layers": backbone.num_layers,
        "num_heads": backbone.num_heads,
        "hidden_dim": backbone.hidden_dim,
        "head_dim": backbone.head_dim,
        "intermediate_dim": backbone.intermediate_dim,
        "memory_length": backbone.memory_length,
        "same_length": bool(backbone.same_length),
        "clamp_length": backbone.clamp_length or 0,
        "cutoffs": list(embedding.cutoffs),
        "div_val": embedding.div_val,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.attention_dropout,
        "batch_size": batch_size,
        "num_threads": os.cpu_count(),
        "seed": 0,
    }
