"""Measures how far back a model recalls, by distance.

Letters: `B` batch, `T` segment, `M` memory, `n` tokens of a stream, `D`
distances.
"""

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.data.segments import Segments


def recall_by_distance(model, task, tokens, batch_size, segment_length, edges):
    """Measures the share of right answers for each range of distances.

    The stream is read as in training: in rows, segment by segment, with memory
    carried on. The first segments of each row are read without being measured,
    until the longest distance fits, so all distances have the same conditions.

    Args:
        model: `TransformerXLCausalLM`.
        task: `RecallTask`, which made the tokens.
        tokens: Integer array of shape `(n,)`, a stream that the model was not
            trained on.
        batch_size: Integer `B`, the number of rows.
        segment_length: Integer `T`.
        edges: List of ascending integers, at least 1. Each pair of neighbours
            `(first, stop)` is a range of distances.

    Returns:
        List of dictionaries, one per range: `start` and `stop`, `accuracy`,
        and `num_answers`, the number of answers measured.

    Raises:
        ValueError: If edges do not ascend, or the stream is too short to have
            answers in all ranges.

    Example:

    ```python
    from txl_keras.data import RecallTask
    from txl_keras.evaluation import recall_by_distance
    from txl_keras.models import TransformerXLCausalLM

    task = RecallTask(num_keys=4, num_values=4, max_distance=48)
    model = TransformerXLCausalLM.from_preset(
        "quickstart", vocabulary_size=task.vocabulary_size, num_layers=1
    )
    tokens = task.stream(6000, seed=2)
    for part in recall_by_distance(model, task, tokens, 4, 16, [1, 16, 48]):
        print(part["start"], part["accuracy"])
    ```
    """
    sizes = batch_size, segment_length
    by_range = answers_by_range(task, tokens, *sizes, edges)
    segments = Segments(tokens, *sizes, drop_remainder=True)
    targets = segments.arrays()[1]
    is_right = model.predict(segments, verbose=0).argmax(axis=-1) == targets
    return [
        {
            "start": start,
            "stop": stop,
            "accuracy": float(is_right[answers].mean()),
            "num_answers": int(answers.sum()),
        }
        for (start, stop), answers in by_range.items()
    ]


def answers_by_range(task, tokens, batch_size, segment_length, edges):
    """Finds the answers of each range of distances, before a model reads."""
    # Returns a boolean array of the shape of `Segments.arrays` per pair of
    # neighbouring edges.
    edges = _check_edges(edges)
    segments = Segments(
        task.distances(tokens), batch_size, segment_length, drop_remainder=True
    )
    distances = segments.arrays()[1]
    steps_to_skip = -(-edges[-1] // segment_length)
    distances[: steps_to_skip * batch_size] = 0
    found = {
        (start, stop): (distances >= start) & (distances < stop)
        for start, stop in zip(edges, edges[1:], strict=False)
    }
    for (start, stop), answers in found.items():
        if not answers.any():
            raise ValueError(
                f"`tokens` must have answers at distances from {start} to "
                f"{stop - 1}. Generate a longer stream or take other `edges`. "
                f"Received: {len(tokens):,} tokens, in rows of "
                f"{segments.steps_per_epoch} segments, of which "
                f"{steps_to_skip} are not measured"
            )
    return found


def attended_share(distances, segment_length, memory_length, same_length=False):
    """Computes how many tokens of a segment attend to a distance directly.

    The token at place t of a segment attends to all before it in the segment
    and to memory, so up to M + t tokens back; with `same_length` up to M. What
    is farther away can only be known through tokens in between, in the layers
    below.

    Args:
        distances: List of `D` integers, in tokens.
        segment_length: Integer `T`.
        memory_length: Integer `M`.
        same_length: Boolean, as of the backbone.

    Returns:
        float64 array of shape `(D,)`, between 0 and 1.

    Example:

    >>> attended_share([3, 4, 5, 6, 7], segment_length=4, memory_length=3)
    array([1.  , 0.75, 0.5 , 0.25, 0.  ])
    """
    check_integer("segment_length", segment_length, 1)
    check_integer("memory_length", memory_length, 0)
    beyond_memory = np.asarray(distances) - memory_length
    if same_length:
        return (beyond_memory <= 0).astype(float)
    return np.clip(1 - beyond_memory / segment_length, 0, 1)


def largest_reach(num_layers, segment_length, memory_length, same_length=False):
    """Computes how far back the last token of a segment could know anything.

    Each layer of memory holds what the layer below knew, so information can
    move back by one more memory per layer. A layer's oldest entry is in an
    earlier segment, whose first token attends to the M tokens before it: a step
    of whole segments, except for the first. With `same_length` a step has
    exactly M tokens. The paper calls this O(L M).

    Args:
        num_layers: Integer `L`.
        segment_length: Integer `T`.
        memory_length: Integer `M`.
        same_length: Boolean, as of the backbone.

    Returns:
        Integer, in tokens.

    Example:

    >>> largest_reach(num_layers=2, segment_length=32, memory_length=64)
    159
    >>> largest_reach(2, 32, 64, same_length=True)
    128
    """
    check_integer("num_layers", num_layers, 1)
    check_integer("segment_length", segment_length, 1)
    check_integer("memory_length", memory_length, 0)
    if same_length:
        return num_layers * memory_length
    step = -(-memory_length // segment_length) * segment_length
    return memory_length + segment_length - 1 + (num_layers - 1) * step


def _check_edges(edges):
    check_list("edges", edges)
    edges = [check_integer("edges", edge, 1) for edge in edges]
    if len(edges) < 2 or sorted(set(edges)) != edges:
        raise ValueError(
            "`edges` must be two or more ascending integers. Received: "
            f"edges={edges}"
        )
    return edges
