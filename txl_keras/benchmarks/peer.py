"""A program in another environment that does the same on request."""

import contextlib
import json
import os
import subprocess


@contextlib.contextmanager
def open_peer(script, python, model, batch_size):
    """Runs a peer, such as train/peers/hugging_face.py, while it is needed.

    Args:
        script: Path of the peer's program, which says what it answers.
        python: String, the Python that runs it.
        model: `TransformerXLCausalLM`, of whose sizes the peer makes one.
        batch_size: Integer `B`.

    Yields:
        Function of a task and its sizes by name. Returns seconds.

    Raises:
        RuntimeError: If the peer ends, or answers that it cannot.
    """
    process = subprocess.Popen(
        [python, "-Wignore", script, json.dumps(_sizes(model, batch_size))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def answer():
        line = process.stdout.readline()
        answered = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answered:
            raise RuntimeError(f"The peer {script}: {answered['error']}")
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
        "batch_size": batch_size,
        "num_threads": os.cpu_count(),
        "seed": 0,
    }
