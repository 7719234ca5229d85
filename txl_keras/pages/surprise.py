"""Shows how surprising each token of a text is, with memory and without.

Letters: `T` segment, `V` vocabulary, `P` tokens of the text.
"""

import html
import json
import math
import pathlib

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.checks import check_vocabulary
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.models.generation.prompts import check_has_tokenizer
from txl_keras.models.generation.text_stream import TextStream

_TEMPLATE = pathlib.Path(__file__).with_name("surprise.html")
# A page holds everything about each token, about 200 bytes.
MAX_TOKENS = 20_000
_NUM_CANDIDATES = 5


def surprise_page(
    model: keras.Model,
    text: str,
    tokenizer: Tokenizer | None = None,
    segment_length: int = 64,
    memory_length: int | None = None,
    title: str = "Surprise",
) -> str:
    """Makes a web page of a text, in which each token is shaded by its bits.

    The page shows `-log2 p(token)` with memory and without, and the tokens that
    the model considers most likely. Without memory, each segment is read from a
    cold start. The page is one file, which makes no request and contains the
    text only in escaped form, so the text may come from a stranger.

    Args:
        model: `TransformerXLCausalLM`.
        text: String of at most 20,000 tokens, or an integer array `(P,)` of
            their ids.
        tokenizer: Optional tokenizer; by default `model.tokenizer`.
        segment_length: Integer `T`, tokens per segment.
        memory_length: Optional integer, tokens of memory; by default the
            model's own.
        title: String, the title of the page.

    Returns:
        String, the HTML.

    Example:

    ```python
    import pathlib

    from txl_keras.data import ByteTokenizer
    from txl_keras.pages import surprise_page
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    page = surprise_page(model, "to be or not to be", ByteTokenizer())
    pathlib.Path("surprise.html").write_text(page, "utf-8")
    ```
    """
    reader = SurpriseReader(model, tokenizer, segment_length, memory_length)
    return reader.page(title, reader.read(reader.encode(text)))


def fill_page(template, title, data):
    """Returns the HTML of a template file, filled with a title and data."""
    # Nothing in the data can end the script element that contains it.
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = template.read_text("utf-8").replace("{{title}}", html.escape(title))
    return page.replace("{{data}}", content)


class SurpriseReader:
    """Finds the bits of each token of texts; compiles once for all texts."""

    def __init__(
        self, model, tokenizer=None, segment_length=64, memory_length=None
    ):
        if tokenizer is None:
            check_has_tokenizer(model, "text")
            tokenizer = model.tokenizer
        check_vocabulary(tokenizer, model.backbone.vocabulary_size)
        check_integer("segment_length", segment_length, 1)
        model.backbone.check_positions(segment_length)
        if memory_length is None:
            memory_length = model.backbone.memory_length
        self.tokenizer = tokenizer
        self._segment_length = segment_length
        self._memory_length = memory_length
        self._model = model
        self._score = tf.function(self._find, autograph=False)

    def encode(self, text, max_tokens=MAX_TOKENS):
        """Returns the ids of a text, or given ids unchanged: int32 `(P,)`."""
        if isinstance(text, (str, bytes)):
            text = self.tokenizer.encode(text)
        ids = check_token_ids("text", text, self.tokenizer.vocabulary_size)
        ids = np.asarray(ids, np.int32)
        check_shape("text", ids, (None,))
        if not 2 <= len(ids) <= max_tokens:
            raise ValueError(
                f"`text` must have at least 2 and at most {max_tokens:,} "
                f"tokens. Received: a text of {len(ids):,} tokens"
            )
        return ids

    def page(self, title, data):
        """Returns the HTML that shows the data of a text."""
        return fill_page(_TEMPLATE, title, data)

    def read(self, ids):
        """Returns the data of a text, given its ids `(P,)`."""
        found = [token for part in self.read_segments(ids) for token in part]
        return self.data(ids, found)

    def data(self, ids, found):
        """Returns the page's data for the tokens of `read_segments`."""
        decode = self.tokenizer.decode_bytes
        stream = TextStream(decode)
        # A character belongs to the text of its last token.
        texts = [stream.add([token]) for token in ids]
        texts[-1] += stream.finish()
        first = {"bits": None, "cold": None, "likeliest": []}
        tokens = zip(texts, [first, *found], strict=True)
        candidates = {i for token in found for i, _ in token["likeliest"]}
        return {
            "tokens": [{"text": text, **token} for text, token in tokens],
            "unit": self.tokenizer.unit,
            "names": {
                str(i): decode([i]).decode("utf-8", "backslashreplace")
                for i in sorted(candidates)
            },
            "memory_length": self._memory_length,
            "segment_length": self._segment_length,
        }

    def read_segments(self, ids):
        """Yields, per segment, a list of dictionaries, one per token."""
        # The first token of the text is left out. `cold` are the bits without
        # memory, `likeliest` are pairs of id and probability. The text is read
        # in two rows, of which one forgets its memory.
        ids = np.asarray(ids, np.int32)
        memory = self._model.initial_memory(2, self._memory_length)
        length = self._segment_length
        for start in range(0, len(ids) - 1, length):
            part = ids[start : start + length + 1]
            count = len(part) - 1
            rows = np.tile(np.pad(part, (0, length - count)), (2, 1))
            (bits, best, probabilities), memory = self._score(rows, memory)
            bits, probabilities = bits.numpy(), probabilities.numpy()
            if not np.isfinite([bits.sum(), probabilities.sum()]).all():
                raise FloatingPointError(
                    "The model returned numbers that are not finite for a "
                    "token. Check that its weights are finite."
                )
            warm, cold = np.round(bits.astype(float), 3).tolist()
            best = best.numpy().tolist()
            probabilities = np.round(probabilities.astype(float), 4).tolist()
            yield [
                {
                    "bits": warm[i],
                    "cold": cold[i],
                    "likeliest": [*zip(best[i], probabilities[i], strict=True)],
                }
                for i in range(count)
            ]

    def _find(self, rows, memory):
        """Returns bits `(2, T)`, and the likeliest ids with probabilities."""
        log_probs, memory = self._model.log_probs(
            rows[:, :-1], memory, reset=tf.constant([False, True])
        )
        nll = -tf.gather(log_probs, rows[:, 1:], batch_dims=2)
        count = min(_NUM_CANDIDATES, self.tokenizer.vocabulary_size)
        best = tf.math.top_k(log_probs[0], count)
        values = nll / math.log(2), best.indices, tf.exp(best.values)
        return values, memory
