"""Times evaluation with memory against a sliding window.

Repeats table 9 of Dai et al., 2019. Both models predict each token from the
same number of earlier tokens, the attention length. Transformer-XL reads
segments, with a memory of that length. The vanilla model has the same sizes
and the learned positions of Al-Rfou et al.; for each token it reads a whole
window of that length and scores only the last token. It reads several windows
per batch, as many as are fastest.
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

# Attention length to slowdown, from table 9 of Dai et al., 2019.
_PUBLISHED_SLOWDOWNS = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def run(model, settings, peer=None):
    """Times both models at each attention length."""
    lengths = sorted(set(settings.attention_lengths))
    if lengths[0] < 2 * settings.segment_length:
        raise ValueError(
            "`attention_lengths` must be at least 2 segments, "
            f"{2 * settings.segment_length} tokens. Received: {lengths[0]}"
        )
    vanilla = _variant(
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
    """Times both models at one attention length and compares their scores."""
    sizes = settings.batch_size, settings.segment_length
    score, reader = segment_scorer(model, *sizes, length)
    differences = _check_scores(model, score, reader, length, settings)
    score = functools.partial(score, *made_up_segment(model, *sizes))
    seconds = take_turns(
        {
            "Transformer-XL": timed(
                lambda: score().numpy(), settings.calls_per_turn
            ),
            "sliding": _sliding_contender(vanilla, length, windows),
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


def _variant(model, **changes):
    """Builds a model whose backbone differs in the given arguments."""
    config = model.get_config()
    config["backbone"]["config"].update(changes)
    return TransformerXLCausalLM.from_config(config)


def _fastest_windows(vanilla, length, settings):
    """Returns the number of windows per batch with the least time each."""
    numbers = sorted(set(settings.windows))
    if len(numbers) == 1:
        return numbers[0]
    seconds = take_turns(
        {n: _sliding_contender(vanilla, length, n) for n in numbers},
        settings.turns,
    ).seconds
    for number in numbers:
        seconds[number] /= number
        print(
            f"Windows of {length:,} tokens, {number} per batch: "
            f"{1e3 * seconds[number]:,.0f} ms each"
        )
    return min(seconds, key=seconds.get)


def _check_scores(model, score, reader, length, settings):
    """Checks that segments with memory score tokens as one long window does."""
    # At the beginning of a text the memory holds all of it. Returns the largest
    # difference in nats, with and without memory.
    plain = _variant(model, memory_length=0, same_length=False)
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
            "Segments with memory must score tokens as one window does. With "
            f"a memory of {length:,} tokens the scores differ by up to "
            f"{with_memory:.2g} nats; without memory by {without:.2g}"
        )
    return {"difference": with_memory, "difference_without_memory": without}


def _print(result):
    ours, other = result["seconds_per_token"].values()
    published = result["published_slowdown"]
    print(
        f"attention length {result['attention_length']:6,}: {1e3 * ours:.3f} "
        f"ms per token; sliding window {1e3 * other:,.1f} ms, "
        f"{result['slowdown']:,.0f} times as long"
        + (f" (published: {published:,})" if published else "")
    )
    print(
        "  Largest difference from the scores of one window: "
        f"{result['difference']:.1g} nats; without memory "
        f"{result['difference_without_memory']:.1g}"
    )


def _sliding_contender(vanilla, length, windows):
    """Returns a contender with one call per turn: it takes very long."""
    text = made_up_text(vanilla, 1, length + windows)[0]
    inputs = tf.stack([text[i : i + length] for i in range(windows)])
    score = _window_scorer(vanilla, inputs, text[length:, None])
    return timed(lambda: score().numpy(), num_calls=1)


def _window_scorer(model, inputs, targets):
    """Returns a function that scores the last `targets.shape[1]` tokens."""
    reader = SegmentReader(model.backbone, *inputs.shape)
    reader.begin()

    @tf.function(jit_compile=True)
    def score(inputs, targets):
        hidden, _ = reader.read(inputs)
        return model.softmax(hidden[:, -targets.shape[1] :], targets)

    # Traced here: otherwise TensorFlow warns of retracing at each new length.
    score.get_concrete_function(inputs, targets)
    return lambda: score(inputs, targets)
