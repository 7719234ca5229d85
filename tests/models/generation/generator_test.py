import numpy as np
import pytest
from factories import V
from factories import seed_weights
from factories import small_model

from txl_keras.samplers import Sampler

# Untied and with large weights, one block does not repeat a token.
VARIED = {
    "vocabulary_size": 9,
    "initializer_stddev": 1.0,
    "tie_embeddings": False,
}


@pytest.fixture(scope="module")
def model():
    seed_weights(4)
    return small_model(num_layers=1, **VARIED)


def write(model, prompt, max_tokens, seed=0, memory_length=None, **sampler):
    rows = model.generate(
        prompt,
        max_new_tokens=max_tokens,
        seed=seed,
        sampler=Sampler(**sampler),
        memory_length=memory_length,
        strip_prompt=True,
    )
    return np.array(rows)  # [B, max_tokens]


ABSOLUTE = {"memory_length": 0, "max_positions": 4, "tie_embeddings": False}


@pytest.mark.parametrize(
    ("config", "memory_length"),
    [
        # Long enough to remember everything, so no memory is the same.
        (VARIED, 8),
        # Large vocabularies are sampled by cluster.
        ({"vocabulary_size": 60, "cutoffs": (20, 40)}, 8),
        # Absolute positions read a window again.
        ({"attention_type": "vaswani", **ABSOLUTE}, 4),
        ({"attention_type": "al_rfou", **ABSOLUTE}, 4),
    ],
)
def test_greedy_takes_the_most_likely_token_of_the_past(config, memory_length):
    model = small_model(num_layers=1, **config)
    last = config.get("vocabulary_size", V) - 1  # in the last cluster
    text = prompt = np.array([[3, 1, 4], [1, 5, last]])
    sizes = {"memory_length": memory_length, "temperature": 0}
    written = write(model, prompt, 6, **sizes)
    window = memory_length if "attention_type" in config else 99
    for _ in range(6):  # reads the whole window again for each token
        log_probs, _ = model.log_probs(text[:, -window:])
        nearest = log_probs[:, -1].numpy().argmax(-1)
        text = np.concatenate([text, nearest[:, None]], axis=1)
    np.testing.assert_array_equal(written, text[:, 3:])
    assert len(np.unique(written)) > 1


def test_a_prompt_longer_than_a_segment_is_read_to_its_end(model):
    prompt = np.random.default_rng(0).integers(0, 9, (1, 300))
    memory = model.initial_memory(1)
    for start, end in ((0, 128), (128, 256), (256, 299)):
        _, memory = model.log_probs(prompt[:, start:end], memory)
    log_probs, _ = model.log_probs(prompt[:, 299:], memory)
    written = write(model, prompt, 1, temperature=0)
    assert written[0, 0] == log_probs[0, -1].numpy().argmax()


def test_a_row_is_written_as_if_it_were_alone(model):
    random = np.random.default_rng(3)
    # Shorter and longer than memory, and than a segment of the prompt.
    prompts = [random.integers(0, 9, n) for n in (1, 140, 4, 260)]
    settings = {"temperature": 0.7, "repetition_penalty": 1.3}
    together = write(model, prompts, 12, seed=5, **settings)
    for row, prompt in enumerate(prompts):
        alone = write(model, [prompt], 12, seed=5 + row, **settings)
        np.testing.assert_array_equal(together[row], alone[0])
    assert len(np.unique(together, axis=0)) == 4


@pytest.mark.large
def test_texts_may_be_written_at_the_same_time(model):
    prompts, both = ([1, 2, 3], [8]), [[], []]
    options = {"max_new_tokens": 6, "seed": 1, "stream": True}
    streams = [model.generate(prompt, **options) for prompt in prompts]
    for parts in zip(*streams, strict=True):
        for written, part in zip(both, parts, strict=True):
            written += part.tolist()
    for prompt, written in zip(prompts, both, strict=True):
        np.testing.assert_array_equal(write(model, [prompt], 6, 1)[0], written)


def test_a_penalty_spares_what_was_read_and_written(model):
    written = write(model, [[3, 1]], 7, temperature=0, repetition_penalty=1e6)
    assert sorted([3, 1, *written[0]]) == list(range(9))


def test_a_model_of_nan_writes_nothing():
    model = small_model(num_layers=1)
    model.weights[0].assign(np.full(model.weights[0].shape, np.nan))
    with pytest.raises(FloatingPointError, match="Token 0.*row 0"):
        write(model, [[2]], 3)


def test_a_seed_writes_the_same_text_and_another_another(model):
    first = write(model, [[2], [2]], 30, seed=1)
    assert (first[0] != first[1]).any()  # each row is a draw of its own
    np.testing.assert_array_equal(first, write(model, [[2], [2]], 30, seed=1))
    assert (first != write(model, [[2], [2]], 30, seed=3)).any()
