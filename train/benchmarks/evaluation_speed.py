"""How many times as long a model without memory takes for a token.

Table 9 of Dai et al., 2019, where each sees as many tokens back, the attention
length. Transformer-XL reads segments, with a memory of that length; the other,
of the same sizes, with the learned positions of Al-Rfou et al., a window of
that length for each token, of which one is scored. It may read some windows at
once: as many as are fastest.
"""

import functools

import tensorflow as tf

from benchmarks.evaluation import segment_scorer
from benchmarks.made_up_text import made_up_segment
from benchmarks.made_up_text import made_up_text
from benchmarks.turns import take_turns
from benchmarks.turns import timed
from txl_keras.evaluation.plots import plot_slowdowns
from txl_keras.models import SegmentReader
from txl_keras.models import TransformerXLCausalLM

# By attention length: table 9 of Dai et al., 2019.
_PUBLISHED_SLOWDOWNS = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def run(model, settings, peer=None):
    """Times both at each attention length: see the package.

    Raises:
        ValueError: If an attention length is less than two segments.
        RuntimeError: If the scores of both, with the same weights, differ.
    """
    lengths = sorted(set(settings.attention_lengths))
    if lengths[0] < 2 * settings.segment_length:
        raise ValueError(
            "`attention_lengths` must be at least 2 segments, "
            f"{2 * settings.segment_length} tokens. Received: {lengths[0]}"
        )
    vanilla = _like(
        model,
        attention_type="al_rfou",
        max_positions=lengths[-1],
        memory_length=0,
        same_length=False,
    )
    num_tokens = lengths[0] * _fastest_windows(vanilla, lengths[0], settings)
    results = []
    for length in lengths:
        windows = max(1, num_tokens // length)
        results.append(_compare(model, vanilla, length, windows, settings))
        _print(results[-1])
    if settings.picture:
        plot_slowdowns(results, settings.picture)
        print(f"Written to {settings.picture}")
    return {
        "memory_length": lengths,
        "segment_length": settings.segment_length,
        "results": results,
    }


def _compare(model, vanilla, length, windows, settings):
    """The result at one attention length."""
    sizes = settings.batch_size, settings.segment_length
    score, reader = segment_scorer(model, *sizes, length)
    differences = _check_scores(model, score, reader, length, settings)
    score = functools.partial(score, *made_up_segment(model, *sizes))
    seconds = take_turns(
        {
            "Transformer-XL": timed(
                lambda: score().numpy(), settings.calls_per_turn
            ),
            "sliding": _sliding(vanilla, length, windows),
        },
        settings.turns,
    ).seconds
    seconds["Transformer-XL"] /= settings.batch_size * settings.segment_length
    seconds["sliding"] /= windows
    return {
        "attention_length": length,
        "windows": windows,
        "seconds_per_token": seconds,
        "slowdown": seconds["sliding"] / seconds["Transformer-XL"],
        "published_slowdown": _PUBLISHED_SLOWDOWNS.get(length),
        **differences,
    }


def _like(model, **changes):
    """A model of the same sizes."""
    config = model.get_config()
    config["backbone"]["config"].update(changes)
    return TransformerXLCausalLM.from_config(config)


def _fastest_windows(vanilla, length, settings):
    """How many windows at once take the least time a window."""
    numbers = sorted(set(settings.windows))
    if len(numbers) == 1:
        return numbers[0]
    seconds = take_turns(
        {n: _sliding(vanilla, length, n) for n in numbers}, settings.turns
    ).seconds
    for number in numbers:
        seconds[number] /= number
        print(
            f"Windows of {length:,}, {number} at once: "
            f"{1e3 * seconds[number]:,.0f} ms each"
        )
    return min(seconds, key=seconds.get)


def _check_scores(model, score, reader, length, settings):
    """Sees that segments with memory score what a window scores.

    At the beginning of a text memory holds all of it. So the last segment of
    as many as make up the attention length must have the scores that the same
    weights give its tokens where they read them all in one window.

    Returns:
        Dictionary of the largest differences, in nats, from the scores of the
        window: with memory, and without.
    """
    plain = _like(model, memory_length=0, same_length=False)
    plain.set_weights(model.get_weights())
    num_segments = length // settings.segment_length
    num_tokens = num_segments * settings.segment_length
    text = made_up_text(model, settings.batch_size, num_tokens + 1)
    segments = [
        tf.split(part, num_segments, axis=1)
        for part in (text[:, :-1], text[:, 1:])
    ]
    expected = _window_scorer(plain, text[:, :-1], segments[1][-1])()
    reader.begin()
    found = [score(*segment) for segment in zip(*segments, strict=True)][-1]
    reader.begin()
    alone = score(segments[0][-1], segments[1][-1])
    with_memory, without = (
        float(tf.reduce_max(tf.abs(nll - expected))) for nll in (found, alone)
    )
    if not with_memory < 0.1 * without:
        raise RuntimeError(
            f"Transformer-XL must score tokens with a memory of {length:,} as "
            "in one window of all of them. The scores differ by up to "
            f"{with_memory:.2g} nats; without memory by {without:.2g}"
        )
    return {"difference": with_memory, "difference_without_memory": without}


def _print(result):
    ours, other = result["seconds_per_token"].values()
    published = result["published_slowdown"]
    print(
        f"{result['attention_length']:6,} tokens back: {1e3 * ours:.3f} ms a "
        f"token, sliding {1e3 * other:,.1f} ms, {result['slowdown']:,.0f} "
        "times as long" + (f" (published: {published:,})" if published else "")
    )
    print(
        f"{'':6} Scores are those of one window to {result['difference']:.1g} "
        f"nats, without memory to {result['difference_without_memory']:.1g}"
    )


def _sliding(vanilla, length, windows):
    """One call a turn: it takes as long as many segments."""
    text = made_up_text(vanilla, 1, length + windows)[0]
    inputs = tf.stack([text[i : i + length] for i in range(windows)])
    score = _window_scorer(vanilla, inputs, text[length:, None])
    return timed(lambda: score().numpy(), num_calls=1)


def _window_scorer(model, inputs, targets):
    """What scores the last tokens of windows, as many as there are targets."""
    reader = SegmentReader(model.backbone, *inputs.shape)
    reader.begin()

    @tf.function(jit_compile=True)
    def score(inputs, targets):
        hidden, _ = reader.read(inputs)
        return model.softmax(hidden[:, -targets.shape[1] :], targets)

    # Traced here, or TensorFlow would warn of one more with each length.
    score.get_concrete_function(inputs, targets)
    return lambda: score(inputs, targets)
