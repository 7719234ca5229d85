"""Metrics of text classifiers.

Letters: `n` texts, `C` classes.
"""

import numpy as np


def classification_scores(label_ids, logits, label_names):
    """Computes loss (nats), accuracy, mean F1 and a confusion matrix."""
    # Row i of `confusion` counts the predictions for texts of class i.
    label_ids = np.asarray(label_ids)
    logits = np.asarray(logits, np.float64)
    num_classes = len(label_names)
    confusion = np.zeros((num_classes, num_classes), int)
    np.add.at(confusion, (label_ids, logits.argmax(axis=1)), 1)
    num_correct = np.diag(confusion)
    num_true, num_predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    by_class = {
        "precision": num_correct / np.maximum(num_predicted, 1),
        "recall": num_correct / np.maximum(num_true, 1),
        "f1": 2 * num_correct / np.maximum(num_true + num_predicted, 1),
        "count": num_true,
    }
    log_sums = np.logaddexp.reduce(logits, axis=1)
    nll = log_sums - logits[np.arange(len(logits)), label_ids]
    return {
        "loss": float(nll.mean()),
        "accuracy": float(num_correct.sum() / confusion.sum()),
        # The mean over classes that occur, as labels or predictions.
        "f1": float(by_class["f1"][num_true + num_predicted > 0].mean()),
        "classes": {
            name: {key: values[i].item() for key, values in by_class.items()}
            for i, name in enumerate(label_names)
        },
        "confusion": confusion.tolist(),
    }
