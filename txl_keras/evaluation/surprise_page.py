"""A web page that shows how surprising each token of a text is for a model.

Letters: `T` segment, `V` vocabulary, `P` tokens of the text.
"""

import html
import json
import math
import pathlib

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_token_ids
from txl_keras.checks import check_vocabulary
from txl_keras.models.generation.request import check_has_tokenizer

_TEMPLATE = pathlib.Path(__file__).with_name("surprise_page.html")
# A page holds everything for each token, about 200 bytes.
MAX_TOKENS = 20_000
# A bar for 0, 1, ... 8 or more bits.
_BARS = " ▁▂▃▄▅▆▇█"


def surprise_page(
    model,
    text,
    tokenizer=None,
    segment_length=64,
    memory_length=None,
    num_candidates=5,
    title="Surprise",
):
    """Makes a web page of a text, in which each token is shaded by its bits.

    The page shows `-log2 p(token)` with memory and without, where each segment
    is read from a cold start, and the tokens that the model finds likeliest.
    It consists of one file, which makes no request and contains the text only
    in escaped form, so the text may come from a stranger.

    Args:
        model: `TransformerXLCausalLM`.
        text: String of at most 20,000 tokens, or an integer array `(P,)` of
            their ids.
        tokenizer: Optional tokenizer; by default `model.tokenizer`.
        segment_length: Integer `T`, tokens per segment.
        memory_length: Optional integer, tokens of memory; by default the
            model's own.
        num_candidates: Integer, how many of the likeliest tokens to show.
        title: String, the title of the page.

    Returns:
        String, the HTML.

    Raises:
        ValueError: If there is no tokenizer, the vocabulary sizes of model and
            tokenizer differ, or the text has fewer than two or too many tokens.

    Example:

    ```python
    import pathlib

    from txl_keras.data import ByteTokenizer
    from txl_keras.evaluation import surprise_page
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    page = surprise_page(model, "to be or not to be", ByteTokenizer())
    pathlib.Path("surprise.html").write_text(page, "utf-8")
    ```
    """
    if tokenizer is None:
        check_has_tokenizer(model, "text")
        tokenizer = model.tokenizer
    check_vocabulary(tokenizer, model.backbone.vocabulary_size)
    check_integer("segment_length", segment_length, 1)
    model.backbone.check_positions(segment_length)
    check_integer(
        "num_candidates", num_candidates, 1, tokenizer.vocabulary_size
    )
    if isinstance(text, (str, bytes)):
        text = tokenizer.encode(text)
    if memory_length is None:
        memory_length = model.backbone.memory_length
    ids = np.asarray(text, np.int32)
    check_token_ids("text", ids, tokenizer.vocabulary_size)
    if not 2 <= len(ids) <= MAX_TOKENS:
        raise ValueError(
            f"`text` must have at least 2 and at most {MAX_TOKENS:,} tokens. "
            f"Received: a text of {len(ids):,} tokens"
        )
    reader = SurpriseReader(
        model, tokenizer, segment_length, memory_length, num_candidates
    )
    return fill_page(title, reader.read(ids))


class SurpriseReader:
    """Computes what a page shows; compiled once for all texts and weights."""

    def __init__(
        self, model, tokenizer, segment_length, memory_length, num_candidates=5
    ):
        self._model = model
        self._tokenizer = tokenizer
        self._segment_length = segment_length
        self._memory_length = memory_length
        self._score = tf.function(
            lambda inputs, targets, memory: _score(
                model, inputs, targets, memory, num_candidates
            )
        )

    def read(self, ids):
        """Returns the data of the page of a text, given its ids `(P,)`."""
        first = {"bits": None, "cold": None, "likeliest": []}
        tokens = self._read_tokens(ids)
        return {
            "tokens": [
                {"text": shown, **found}
                for shown, found in zip(
                    _texts(self._tokenizer, ids), [first, *tokens], strict=True
                )
            ],
            "unit": self._tokenizer.unit,
            "names": _names(self._tokenizer, tokens),
            "memory_length": self._memory_length,
            "segment_length": self._segment_length,
        }

    def _read_tokens(self, ids):
        """Returns a dictionary for each token but the first."""
        padding = -(len(ids) - 1) % self._segment_length
        inputs, targets = (
            tf.reshape(
                tf.pad(part, [[0, padding]]), (-1, 1, self._segment_length)
            )
            for part in (ids[:-1], ids[1:])
        )
        empty = self._model.initial_memory(1, self._memory_length)
        memory, warm, cold = empty, [], []
        for segment, target in zip(inputs, targets, strict=True):
            found, memory = self._score(segment, target, memory)
            warm.append(found)
            cold.append(self._score(segment, target, empty)[0])
        bits, candidates, probabilities = (
            np.concatenate([part.numpy()[0] for part in parts])[: len(ids) - 1]
            for parts in zip(*warm, strict=True)
        )
        cold_bits = np.concatenate([part[0].numpy()[0] for part in cold])
        return [
            {
                "bits": round(float(bits[i]), 3),
                "cold": round(float(cold_bits[i]), 3),
                "likeliest": [
                    [int(token), round(float(p), 4)]
                    for token, p in zip(
                        candidates[i], probabilities[i], strict=True
                    )
                ],
            }
            for i in range(len(bits))
        ]


def _score(model, inputs, targets, memory, num_candidates):
    log_probs, memory = model.log_probs(inputs, memory)
    nll = -tf.gather(log_probs, targets, batch_dims=2)
    best = tf.math.top_k(log_probs, num_candidates)
    return (nll / math.log(2), best.indices, tf.exp(best.values)), memory


def _texts(tokenizer, ids):
    """Returns the text of each token; a character is that of its last token."""
    texts, data = [], b""
    for token in ids:
        data += tokenizer.decode_bytes([token])
        try:
            texts.append(data.decode("utf-8"))
            data = b""
        except UnicodeDecodeError as error:
            # Four bytes are the longest character.
            is_partial = error.end == len(data) and len(data) < 4
            texts.append("" if is_partial else data.decode("utf-8", "replace"))
            data = data if is_partial else b""
    return texts


def _names(tokenizer, tokens):
    """Returns the texts of all candidates by their ids."""
    ids = {token for found in tokens for token, _ in found["likeliest"]}
    return {
        str(token): tokenizer.decode_bytes([token]).decode(
            "utf-8", "backslashreplace"
        )
        for token in sorted(ids)
    }


def fill_page(title, data):
    """Returns the HTML of a page, given a string and what a reader read."""
    # Nothing in the data can end the script element that holds it.
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = _TEMPLATE.read_text("utf-8")
    return page.replace("{{title}}", html.escape(title)).replace(
        "{{data}}", content
    )


def surprise_bars(data):
    """Returns the text of a page, each line above the bits of its tokens."""
    lines, text, bars = [], "", ""
    for token in data["tokens"]:
        bar = _BARS[min(len(_BARS) - 1, round(token["bits"] or 0))]
        for character in token["text"]:
            if character == "\n":
                lines += [text, bars.rstrip()]
                text = bars = ""
            else:
                text += character if character.isprintable() else " "
                bars += bar
    return "\n".join([*lines, text, bars.rstrip()])
