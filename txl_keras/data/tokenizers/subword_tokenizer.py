"""What `SentencePieceTokenizer` and `WordPieceTokenizer` share."""

import importlib
import io
import random
import re

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.data.tokenizers.token_ids import as_bytes
from txl_keras.data.tokenizers.token_ids import decode_utf8

# sentencepiece leaves a sentence out for one of these characters.
_CHARACTER = "[^\n\0\u2047\u2585]"
# It leaves out long sentences too, and ends the program at words of 65536
# characters: sentences are cut, before a space where there is one.
_SENTENCE = re.compile(rf"{_CHARACTER}{{1,1000}}(?!\S)|{_CHARACTER}{{1,1000}}")


def import_extra(name):
    """Imports a module that only subwords need.

    Args:
        name: String, the module's full name.

    Returns:
        The module.

    Raises:
        ImportError: If it is not installed, with the command that does it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Subwords need {name.split('.')[0]}, which cannot be imported "
            f'({error}). Install it with `pip install -e ".[subwords]"`.'
        ) from error


def split_lines(text, keep_ends):
    """Splits text at newlines alone: other line separators are characters.

    Args:
        text: `bytes` in UTF-8, or `str`.
        keep_ends: Boolean, whether lines keep their newlines.

    Returns:
        List of `bytes`. Without `keep_ends`, one more than there are newlines.

    Raises:
        ValueError: If the text is not valid UTF-8.
    """
    data = as_bytes(text)
    decode_utf8(data)  # TensorFlow would write U+FFFD and say nothing.
    return io.BytesIO(data).readlines() if keep_ends else data.split(b"\n")


def join_lines(tokens, line_end_id):
    """Joins the tokens of lines.

    Args:
        tokens: `tf.RaggedTensor` of shape `(lines, None)`.
        line_end_id: Optional integer, the token to put between lines.

    Returns:
        Array of shape `(n,)`.
    """
    ids = tokens.values.numpy()
    if line_end_id is None:
        return ids
    return np.insert(ids, tokens.row_splits.numpy()[1:-1], line_end_id)


def train_pieces(texts, vocabulary_size, max_lines, **options):
    """Lets sentencepiece learn the pieces of texts, the same ones every time.

    Args:
        texts: Iterable of `bytes` in UTF-8 or of `str`.
        vocabulary_size: Integer.
        max_lines: Integer. Of more lines than these a sample is read.
        **options: Of sentencepiece's trainer.

    Returns:
        A `ModelProto` of sentencepiece.

    Raises:
        ValueError: If there is no text, or if the vocabulary cannot have this
            size.
    """
    check_integer("vocabulary_size", vocabulary_size, 1)
    check_integer("max_lines", max_lines, 1)
    sentencepiece = import_extra("sentencepiece")
    protos = import_extra("sentencepiece.sentencepiece_model_pb2")
    sentences = _sample(_sentences(texts), max_lines)
    if not sentences:
        raise ValueError("`texts` must hold text to learn from.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=vocabulary_size,
            # Normalization would lose text.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            # Marks that no text has would waste rows of the embedding.
            bos_id=-1,
            eos_id=-1,
            # Sums of floats depend on how they are divided among threads.
            num_threads=16,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        # Of sentencepiece's "... 10 vs 273 ..." and "... a value <= 275."
        limit = re.search(r"(vs|<=) (\d+)", str(error))
        if limit is None:
            raise
        bound = {"vs": "least", "<=": "most"}[limit[1]]
        raise ValueError(
            f"`vocabulary_size` must be at {bound} {limit[2]} for these texts. "
            f"Received: vocabulary_size={vocabulary_size}"
        ) from error
    return protos.ModelProto.FromString(model.getvalue())


def _sentences(texts):
    for text in texts:
        yield from _SENTENCE.findall(decode_utf8(as_bytes(text)))


def _sample(items, size):
    """Keeps each item equally likely, and the same ones every time."""
    # sentencepiece samples too, but other sentences in every run.
    generator = random.Random(0)
    kept = []
    for i, item in enumerate(items):
        if i < size:
            kept.append(item)
            continue
        place = int(generator.random() * (i + 1))
        if place < size:
            kept[place] = item
    return kept
