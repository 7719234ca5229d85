"""Relative effective context length (RECL) of a group of models.

Section 4.3 and appendix C of Dai et al., 2019. A better model gains less from
longer context, because less remains to be gained. The RECL therefore compares
the models of a group, and counts only the gain over the best of these models.

Letters: `G` models of the group, `C` context lengths, `P` positions of a text.
"""

from collections.abc import Sequence

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_number
from txl_keras.checks import check_shape

THRESHOLD = 0.01  # appendix C of the paper


def effective_context_lengths(
    losses: Sequence[np.ndarray],
    context_lengths: Sequence[int],
    top_r: float = 1.0,
    threshold: float = THRESHOLD,
) -> list[dict]:
    """Computes the RECL of each model: the longest context that still helps.

    This is the search of appendix C. Starting from the shortest length, c
    grows by a constant step Delta while the relative gain in perplexity,
    `g_i(c, c + Delta)`, is at least the threshold. The RECL is the first c at
    which the gain is below the threshold.

    At either end of the measured lengths, the result is only a bound. If the
    last gain still reaches the threshold, the RECL is the longest length, a
    lower bound. If the first gain is below the threshold, the RECL is the
    shortest length, an upper bound.

    Args:
        losses: List of `G` arrays of shape `(C, P)`, one per model: the losses
            of the same P tokens in nats, for each context length. See
            `context_losses`.
        context_lengths: List of `C` integers, ascending by a constant step.
        top_r: Float in `(0, 1]`, the share of positions that count: those
            with the largest baseline loss.
        threshold: Float above 0, the smallest relative gain in perplexity
            that counts.

    Returns:
        List of G dictionaries: `recl`, one of the context lengths; `bound`,
        which is `"lower"` or `"upper"` if `recl` is only a bound, else `None`;
        `gains`, a list of `C - 1` floats, the relative gains of all steps; and
        `standard_errors` of the gains: how much they would differ at other
        positions of the text.

    Example:

    >>> losses = [
    ...     [[3.0, 2.0], [2.9, 2.0], [2.8, 2.0], [2.8, 2.0]],
    ...     [[3.2, 2.0], [3.1, 2.0], [2.9, 2.0], [2.9, 2.0]],
    ... ]
    >>> for model in effective_context_lengths(losses, [10, 20, 30, 40]):
    ...     print(model["recl"], model["bound"], np.round(model["gains"], 3))
    30 None [0.049 0.049 0.   ]
    10 upper [0. 0. 0.]

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), appendix C.
    """
    check_context_lengths(context_lengths)
    check_number("top_r", top_r, 0, 1, exclusive=True)
    check_number("threshold", threshold, 0, exclusive=True)
    if len(losses) < 2:
        raise ValueError(
            "`losses` must be from two models or more, because the RECL is "
            f"relative to the best of a group. Received: {len(losses)}"
        )
    losses = np.stack([np.asarray(x, np.float64) for x in losses])
    check_shape("losses", losses, (None, len(context_lengths), None))
    if not (losses.size and np.isfinite(losses).all()):
        raise ValueError("`losses` must be finite, for at least one token.")
    found = []
    for gains, errors in zip(*_gains(losses, top_r), strict=True):
        # Steps 1 and 2 of the algorithm.
        is_small = (gains < threshold).tolist()
        i = [*is_small, True].index(True)
        bound = {0: "upper", len(gains): "lower"}.get(i)
        found.append(
            {
                "recl": int(context_lengths[i]),
                "bound": bound,
                "gains": gains.tolist(),
                "standard_errors": errors.tolist(),
            }
        )
    return found


def _gains(losses, top_r):
    """Returns relative gains and their standard errors, `(G, C - 1)` each."""
    # With the loss `l_i(c, t)` of model i at token t, given the c tokens before
    # it, appendix C defines
    #
    #     b(c, t) = min over i of l_i(c, t)                  the baseline
    #     f_i(c, c') = mean over t in T of min(b(c, t), l_i(c', t))
    #     g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)
    #
    # where T are the positions with the largest b(c, t). A loss above the
    # baseline gives no gain, because another model reaches the baseline with
    # less context.
    baseline = losses.min(axis=0)[:-1]  # b(c, t), [C - 1, P]
    # f_i(c, c) is the mean of b, because no model is below b at c.
    changes = np.minimum(baseline, losses[:, 1:]) - baseline
    # The top-r positions by b(c, t); ties: first.
    count = max(1, round(top_r * losses.shape[2]))
    hard = np.argsort(-baseline, axis=1, kind="stable")[None, :, :count]
    changes = np.take_along_axis(changes, hard, axis=2)
    # f_i(c, c') - f_i(c, c). The fraction of g_i is reduced by exp(f_i(c, c)),
    # because this value alone may overflow.
    factor = np.exp(changes.mean(axis=2))
    return 1 - factor, factor * changes.std(axis=2) / np.sqrt(count)


def recl_label(result):
    """Formats a RECL for tables and plots; a lower bound as `>= 1,000`."""
    sign = {"lower": ">= ", "upper": "<= ", None: ""}[result["bound"]]
    return f"{sign}{result['recl']:,}"


def check_context_lengths(context_lengths):
    """Raises `ValueError` unless lengths rise by a constant step."""
    check_list("context_lengths", context_lengths)
    for length in context_lengths:
        check_integer("context_lengths", length, 1)
    steps = set(np.diff(context_lengths).tolist())
    if len(steps) != 1 or min(steps) < 1:
        raise ValueError(
            "`context_lengths` must be two or more integers that rise by a "
            f"constant step. Received: {list(context_lengths)}"
        )
