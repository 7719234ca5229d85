"""Relative effective context length: how much context a model makes use of.

Section 4.3 and appendix C of Dai et al., 2019. A better model gains less from
more context, for there is less left to gain. So models are compared in a group:
what counts is the gain over the best of them.

Letters: `G` models of the group, `C` context lengths, `P` positions of a text.
"""

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_number

THRESHOLD = 0.01  # of the paper


def effective_context_lengths(
    losses, context_lengths, top_r=1.0, threshold=THRESHOLD
):
    """RECL: up to which length more context pays, for each model of a group.

    The search of appendix C: from the shortest length c on, c grows by a step
    Delta for as long as `g_i(c, c + Delta)` of `relative_gains` is at least
    the threshold. The first c where it is less is the RECL: the step to it
    paid, the step beyond it does not.

    At the sides of the lengths given it is a bound. Where even the last step
    paid, it is the longest length, and the true one may be longer. Where the
    first step does not pay, it is the shortest length, by the algorithm, but
    no step to it was measured, and the true one may be shorter.

    Args:
        losses: `G` arrays of shape `(C, P)`, one for each model: nats of the
            same P tokens, each predicted from c tokens before it, for each c
            of the context lengths. See `context_losses`.
        context_lengths: `C` integers, each Delta more than the one before.
        top_r: Float in `(0, 1]`, the share of positions that count.
        threshold: Float above 0, a share of the perplexity.

    Returns:
        List of G dictionaries: `recl`, one of the context lengths; `bound`,
        `"lower"` or `"upper"` where that is all `recl` is, else `None`; and
        `gains`, `C - 1` floats, the relative gains of all steps.

    Raises:
        ValueError: If there are fewer than two models, the context lengths do
            not rise by one step, losses are of other shapes or not finite, or
            `top_r` or `threshold` is out of range.

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
    check_top_r(top_r)
    check_number("threshold", threshold, 0, exclusive=True)
    losses = _check_losses(losses, len(context_lengths))
    by_length = losses.swapaxes(0, 1)  # [C, G, P]
    gains = [
        relative_gains(short, long, top_r)
        for short, long in zip(by_length[:-1], by_length[1:], strict=True)
    ]
    return [
        _search(of_model, context_lengths, threshold)
        for of_model in np.transpose(gains).tolist()  # [G, C - 1]
    ]


def relative_gains(short, long, top_r=1.0):
    """What each model of a group gains by longer context: `g_i(c, c')`.

    With the loss `l_i(c, t)` of model i at token t, given c tokens before it,
    appendix C has

        b(c, t) = min over i of l_i(c, t)                  the baseline
        f_i(c, c') = mean over t in T of min(b(c, t), l_i(c', t))
        g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

    where T are the positions with the largest b(c, t). A loss above the
    baseline earns nothing: another model does as well with less context.

    Args:
        short, long: Float arrays of shape `(G, P)`, `l_i(c, t)` and
            `l_i(c', t)` in nats.
        top_r: Float in `(0, 1]`, the share of positions in T; at least one.

    Returns:
        float64 array of shape `(G,)`, each in `[0, 1)`.

    Example: at both tokens the second model is better with short context; the
    first passes it by log(2) at one of them, so the perplexity falls by the
    root of 2.

    >>> short = np.log([[8.0, 4.0], [4.0, 4.0]])
    >>> long = np.log([[2.0, 9.0], [4.0, 4.0]])
    >>> relative_gains(short, long).round(4).tolist()
    [0.2929, 0.0]
    """
    short, long = np.asarray(short, float), np.asarray(long, float)
    baseline = short.min(axis=0)  # b(c, t), [P]
    hard = _hardest(baseline, top_r)
    # f_i(c, c) is the mean of b: no model is below it at c.
    changes = np.minimum(baseline, long)[:, hard] - baseline[hard]
    change = changes.mean(axis=1)  # f_i(c, c') - f_i(c, c), [G]
    # g_i with its fraction reduced: exp(f) alone may overflow.
    return 1 - np.exp(change)


def _hardest(baseline, top_r):
    """Indices of the top-r positions by b(c, t); of equal ones the first."""
    count = max(1, round(top_r * len(baseline)))
    return np.argsort(-baseline, kind="stable")[:count]


def _search(gains, context_lengths, threshold):
    """Steps 1 and 2 of the algorithm of appendix C, for one model."""
    paying = 0
    while paying < len(gains) and gains[paying] >= threshold:
        paying += 1
    bound = {0: "upper", len(gains): "lower"}.get(paying)
    recl = int(context_lengths[paying])
    return {"recl": recl, "bound": bound, "gains": gains}


def recl_label(result):
    """A RECL as tables and pictures show it.

    Args:
        result: Dictionary of `effective_context_lengths`.

    Returns:
        String, with a sign where it is a bound.

    Example:

    >>> recl_label({"recl": 1000, "bound": "lower"})
    '>= 1,000'
    """
    sign = {"lower": ">= ", "upper": "<= ", None: ""}[result["bound"]]
    return f"{sign}{result['recl']:,}"


def check_context_lengths(context_lengths):
    """Raises `ValueError` unless these are two or more, rising by one step."""
    check_list("context_lengths", context_lengths)
    for length in context_lengths:
        check_integer("context_lengths", length, 1)
    steps = set(np.diff(context_lengths).tolist())
    if len(steps) != 1 or min(steps) < 1:
        raise ValueError(
            "`context_lengths` must be two or more, each the same step longer "
            f"than the one before. Received: {list(context_lengths)}"
        )


def check_top_r(top_r):
    """Raises `ValueError` unless this is a share of positions."""
    check_number("top_r", top_r, 0, 1, exclusive=True)


def _check_losses(losses, num_lengths):
    """The losses as float64 `(G, C, P)`."""
    check_list("losses", losses)
    if len(losses) < 2:
        raise ValueError(
            "`losses` must be those of a group of two models or more: the "
            f"length is relative to the best. Received: {len(losses)}"
        )
    shapes = [np.shape(of_model) for of_model in losses]
    shape = shapes[0]
    is_wrong = len(shape) != 2 or shape[0] != num_lengths or not shape[1]
    if is_wrong or len(set(shapes)) > 1:
        raise ValueError(
            f"`losses` must all have one shape ({num_lengths}, P), a row for "
            f"each context length. Received: shapes {shapes}"
        )
    losses = np.asarray(losses, np.float64)
    wrong = np.argwhere(~np.isfinite(losses))
    if len(wrong):
        model, length, position = wrong[0].tolist()
        raise ValueError(
            "`losses` must be finite. Received: "
            f"losses[{model}][{length}][{position}]="
            f"{losses[model, length, position]}"
        )
    return losses
