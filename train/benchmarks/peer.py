"""A program in another environment that does the same on request."""

import contextlib
import functools
import json
import os
import subprocess

from benchmarks.turns import CannotRunError


@contextlib.contextmanager
def open_peer(script, python, model, batch_size):
    """Runs a peer, such as train/peers/hugging_face.py, while it is needed.

    Args:
        script: Path of the peer's program, which says what it answers.
        python: String, the Python that runs it.
        model: `TransformerXLCausalLM`, of whose sizes the peer makes one.
        batch_size: Integer `B`.

    Yields:
        Function of a task and its sizes by name. Returns seconds. Raises
        `CannotRunError` where the peer's compiler fails.

    Raises:
        ValueError: If the peer has no such model.
        RuntimeError: If the peer ends, or does not understand.
    """
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
            answered = {"error": f"no answer, but {line.strip()!r}"}
        if "error" in answered:
            raise RuntimeError(
                f"The peer {script}, run by {python}: {answered['error']}"
            )
        if "cannot" in answered:
            raise CannotRunError(answered["cannot"])
        return answered

    def ask(task, **sizes):
        request = {"task": task, **sizes}
        print(json.dumps(request), file=process.stdin, flush=True)
        return answer()["seconds"]

    try:
        answer()  # that it is ready
        yield ask
    finally:
        process.kill()
        process.wait()


def peer_contenders(peer, task, **sizes):
    """A peer as it is, and compiled.

    Args:
        peer: What `open_peer` yields, or `None`.
        task: String, one that the peer can also do compiled.
        **sizes: Of the task.

    Returns:
        Dictionary of contenders, for `take_turns`; empty without a peer.
    """
    if peer is None:
        return {}
    ask = functools.partial(peer, task, **sizes)
    return {
        "hugging_face": functools.partial(ask, compiled=False),
        "hugging_face compiled": functools.partial(ask, compiled=True),
    }


def _check_model(model):
    """The peer would be timed with another model, and say nothing."""
    backbone = model.backbone
    parts = {
        f"attention_type={backbone.attention_type}": (
            backbone.attention_type != "relative"
        ),
        "normalize_first": backbone.normalize_first,
        "normalize_output": backbone.normalize_output,
    }
    other = [name for name, is_there in parts.items() if is_there]
    if other:
        raise ValueError(
            "`peer` needs relative attention and layer norms after each layer, "
            f"none after the last block. Received: {', '.join(other)}"
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
