import factories
import numpy as np
import pytest
from factories import V
from model_checks import segment_nll

from txl_keras.evaluation.context_losses import context_losses
from txl_keras.evaluation.context_losses import spread_positions
from txl_keras.models import LSTMBackbone

TEXT = np.random.default_rng(6).integers(V, size=60, dtype="int32")
POSITIONS = np.array([37, 40, 58, 41, 59])
LENGTHS = [4, 1, 9, 37]  # the last: more than can matter


def small_model(**config):
    return factories.small_model(**{"num_layers": 2, **config})


def last_nll(model, windows, segment_length):
    """The last token of each window, by the training path."""
    more, first = divmod(windows.shape[1] - 2, segment_length)
    lengths = [first + 1, *[segment_length] * more]
    return segment_nll(model, windows, lengths)[:, -1]


@pytest.mark.parametrize(
    "config",
    [
        {"same_length": True, "clamp_length": 3},
        {"attention_type": "vaswani", "memory_length": 0, "num_layers": 1},
        {"make": LSTMBackbone, "initializer_stddev": 0.5},
    ],
    ids=["relative", "vaswani", "lstm"],
)
def test_each_token_is_predicted_from_its_window_alone(config):
    model = small_model(**config)
    progress, out = [], np.full((4, 5), np.nan, np.float32)
    out[0], out[1, 2] = 5.0, 5.0  # a whole row is not measured again
    losses = context_losses(
        model, TEXT, POSITIONS, LENGTHS, segment_length=5, batch_size=3,
        out=out,
        on_progress=lambda done, total: progress.append((done, total)),
    )  # fmt: skip
    assert losses is out
    np.testing.assert_array_equal(out[0], 5.0)
    for of_length, c in zip(losses[1:], LENGTHS[1:], strict=True):
        windows = np.stack([TEXT[t - c : t + 1] for t in POSITIONS])
        expected = last_nll(model, windows, 5)
        np.testing.assert_allclose(of_length, expected, atol=1e-5)
    assert progress == [(n, 20) for n in (8, 10, 13, 15, 18, 20)]
    # More context changes all scores, unless the last 5 tokens are all that
    # the model sees.
    changes = np.abs(np.diff(losses[1:], axis=0)).max(axis=1)
    assert changes[0] > 1e-3
    assert (changes[1] > 1e-6) == (config.get("memory_length") != 0)


def test_positions_are_spread_over_the_text():
    assert spread_positions(107, 4, 7).tolist() == [7, 32, 57, 82]
    assert spread_positions(10, 3, 7).tolist() == [7, 8, 9]
    with pytest.raises(ValueError, match="at most 3.*num_positions=4"):
        spread_positions(10, 4, 7)
    with pytest.raises(ValueError, match="at most 4.*longest_context=7"):
        spread_positions(5, 1, 7)


def test_what_cannot_be_scored_is_refused():
    model = small_model(num_layers=1)
    for tokens, positions, lengths, segment_length, message in (
        (TEXT, [12, 60], [9], 4, "`positions`.*from 12 to 60"),
        (TEXT, [8, 20], [9], 4, "`positions`.*from 8 to 20"),
        (TEXT, [[12]], [9], 4, r"`positions`.*shape=\(1, 1\)"),
        (TEXT, [12.5], [9], 4, "`positions`.*float64"),
        (TEXT, [12], [0, 5], 4, "context_lengths=0"),
        (TEXT + V, [12], [5], 4, r"integers in \[0, 11\)"),
        (TEXT, [12], [5], 0, "segment_length=0"),
    ):
        with pytest.raises(ValueError, match=message):
            context_losses(model, tokens, positions, lengths, segment_length)
    model.softmax.biases[0].assign(np.full(V, np.nan))
    with pytest.raises(FloatingPointError, match="token 12 .* 5 tokens.*nan"):
        context_losses(model, TEXT, [12], [5], 4)
