"""Export of a text classifier as a SavedModel.

More letters: `W` tokens of the longest text, `C` classes.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_vocabulary
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.models.transformer_xl_text_classifier import (
    TransformerXLTextClassifier,
)
from txl_keras.serving.export_folders import check_model
from txl_keras.serving.export_folders import check_path
from txl_keras.serving.export_folders import write_saved_model
from txl_keras.serving.graph_tokenizers import GraphTokenizer
from txl_keras.serving.served_model import MAX_BATCH_SIZE
from txl_keras.types import PathLike


def export_classifier(
    model: keras.Model,
    tokenizer: Tokenizer,
    label_names: Sequence[str],
    path: PathLike,
    max_tokens: int | None = None,
    settings: dict | None = None,
    assets: dict | None = None,
    max_batch_size: int = MAX_BATCH_SIZE,
) -> None:
    """Exports a classifier as a SavedModel that takes raw text.

    | signature | in | out |
    |---|---|---|
    | `classify` | `text` `(B,)` | `label` `(B,)`, `probabilities` `(B, C)`, \
`labels` `(B, C)` |

    `serving_default` is the same signature. `probabilities` are float32 and
    sum to 1, `labels` are the names of the classes in the same order. Texts may
    have any length. A text without a token raises `InvalidArgument`. The
    SavedModel contains the tokenizer, see `export`.

    Args:
        model: `TransformerXLTextClassifier`.
        tokenizer: The tokenizer of the model.
        label_names: List of C strings, in the order of the classes.
        path: See `export`.
        max_tokens: Optional integer. Longer texts are truncated to this
            length; use the length of training.
        settings, assets, max_batch_size: See `export`.

    Example:

    ```python
    import tempfile
    import tensorflow as tf
    from txl_keras.data import ByteTokenizer
    from txl_keras.models import TransformerXLTextClassifier
    from txl_keras.serving import export_classifier

    model = TransformerXLTextClassifier.from_preset(
        "quickstart", num_classes=2, num_layers=1
    )
    path = tempfile.mkdtemp() + "/mails/1"
    export_classifier(model, ByteTokenizer(), ["ham", "spam"], path)

    loaded = tf.saved_model.load(path)
    answer = loaded.signatures["classify"](text=tf.constant(["You won!"]))
    print(answer["label"], answer["probabilities"])  # (1,), (1, 2)
    ```
    """
    path = check_path(path)
    check_model(model, TransformerXLTextClassifier)
    check_integer("max_batch_size", max_batch_size, 1)
    check_vocabulary(tokenizer, model.backbone.vocabulary_size)
    if max_tokens is not None:
        check_integer("max_tokens", max_tokens, 1)
    if len(label_names) != model.num_classes:
        raise ValueError(
            f"`label_names` must be a list of {model.num_classes} strings, "
            f"one per class. Received: {label_names}"
        )
    encoder = GraphTokenizer(tokenizer)
    names = tf.constant(label_names)

    def classify(text):
        token_ids, lengths = encoder.encode_input("text", text)
        if max_tokens is not None:
            token_ids = token_ids[:, :max_tokens]
            lengths = tf.minimum(lengths, max_tokens)
        logits = model((token_ids, lengths), training=False)
        return {
            "label": tf.gather(names, tf.argmax(logits, axis=1)),
            "probabilities": tf.nn.softmax(logits),
            "labels": tf.tile(names[None], [tf.size(lengths), 1]),
        }

    write_saved_model(
        path,
        {"classify": (classify, [tf.TensorSpec((None,), tf.string, "text")])},
        [encoder],
        {
            "model": model.get_config(),
            "tokenizer": type(tokenizer).__name__,
            "labels": list(label_names),
            "max_tokens": max_tokens,
            "max_batch_size": max_batch_size,
        },
        settings,
        assets,
    )
