"""How well a classifier tells classes apart.

Letters: `n` texts, `C` classes.
"""

import numpy as np


def classification_scores(label_ids, logits, label_names):
    """Counts what was told right, over all and by class.

    Args:
        label_ids: Integers `(n,)` in `[0, C)`, what is right.
        logits: Array `(n, C)`, what a classifier says.
        label_names: List of C strings.

    Returns:
        Dictionary that JSON can hold: `loss`, mean cross-entropy in nats;
        `accuracy`; `f1`, the mean over classes; `classes`, by name the
        `precision`, `recall`, `f1` and `count` of each; `confusion`, `(C, C)`:
        row i has how many texts of class i were taken for each class. A
        precision or recall of nothing is 0.

    Example:

    >>> logits = [[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]
    >>> scores = classification_scores([0, 0, 1], logits, ["ham", "spam"])
    >>> scores["confusion"], round(scores["f1"], 3)
    ([[1, 1], [0, 1]], 0.667)
    """
    label_ids = np.asarray(label_ids)
    logits = np.asarray(logits, np.float64)
    num_classes = len(label_names)
    confusion = np.zeros((num_classes, num_classes), int)
    np.add.at(confusion, (label_ids, logits.argmax(axis=1)), 1)
    right = np.diag(confusion)
    there, taken = confusion.sum(axis=1), confusion.sum(axis=0)
    recall = right / np.maximum(there, 1)
    precision = right / np.maximum(taken, 1)
    f1 = (
        2 * right / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    )
    log_sums = np.logaddexp.reduce(logits, axis=1)
    nll = log_sums - logits[np.arange(len(logits)), label_ids]
    return {
        "loss": float(nll.mean()),
        "accuracy": float(right.sum() / confusion.sum()),
        "f1": float(f1.mean()),
        "classes": {
            name: {
                "precision": float(precision[i]),
                "recall": float(recall[i]),
                "f1": float(f1[i]),
                "count": int(there[i]),
            }
            for i, name in enumerate(label_names)
        },
        "confusion": confusion.tolist(),
    }
