"""A classifier of texts as a SavedModel.

Letters: `B` batch, `W` tokens of the longest text, `C` classes.
"""

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_vocabulary
from txl_keras.serving.graph_checks import check_not_empty
from txl_keras.serving.graph_tokenizers import graph_tokenizer
from txl_keras.serving.saved_models import check_path
from txl_keras.serving.saved_models import write_saved_model
from txl_keras.serving.served_model import MAX_BATCH_SIZE


def export_classifier(
    model,
    tokenizer,
    label_names,
    path,
    max_tokens=None,
    settings=None,
    assets=None,
    max_batch_size=MAX_BATCH_SIZE,
):
    """Writes a classifier as a SavedModel that takes raw text.

    | signature | in | out |
    |---|---|---|
    | `classify` | `text` `(B,)` | `label` `(B,)`, `probabilities` `(B, C)`, \
`labels` `(B, C)` |

    `serving_default` is the same. `probabilities` are float32 and sum to 1,
    `labels` are the names beside them, `label` is the one that is most
    probable. Texts of a request may have any lengths; each is read as if it
    were alone. One without a token is refused with `InvalidArgument`.

    The tokenizer is inside. Bytes, characters and words need TensorFlow alone.
    Subwords need `import tensorflow_text` before the model is loaded: without
    it TensorFlow says `Op type not registered 'SentencepieceOp'`.

    Args:
        model: `TransformerXLTextClassifier`.
        tokenizer: Its tokenizer.
        label_names: List of C strings.
        path: See `export`.
        max_tokens: Optional integer, where longer texts are cut, if they were
            in training.
        settings, assets, max_batch_size: See `export`.

    Raises:
        ValueError: If the tokenizer is not that of the model or cannot be
            brought into a graph, or there are not as many names as classes; on
            `path`, as `export`.

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
    check_path(path)
    check_integer("max_batch_size", max_batch_size, 1)
    check_vocabulary(tokenizer, model.backbone.vocabulary_size)
    if max_tokens is not None:
        check_integer("max_tokens", max_tokens, 1)
    if len(label_names) != model.num_classes:
        raise ValueError(
            f"`label_names` must be {model.num_classes}, one a class. "
            f"Received: {label_names}"
        )
    inside = graph_tokenizer(tokenizer)
    names = tf.constant(label_names)

    def classify(text):
        token_ids, lengths = inside.encode(text)
        if max_tokens is not None:
            token_ids = token_ids[:, :max_tokens]
            lengths = tf.minimum(lengths, max_tokens)
        with tf.control_dependencies([check_not_empty("text", lengths)]):
            logits = model((token_ids, tf.identity(lengths)), training=False)
        return {
            "label": tf.gather(names, tf.argmax(logits, axis=1)),
            "probabilities": tf.nn.softmax(logits),
            "labels": tf.tile(names[None], [tf.size(lengths), 1]),
        }

    write_saved_model(
        path,
        {"classify": (classify, [tf.TensorSpec((None,), tf.string, "text")])},
        [inside],
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
