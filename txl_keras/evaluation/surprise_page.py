"""A web page that shows how surprising each token of a text is for a model.

Letters: `T` segment, `P` tokens of the text.
"""

import html
import json
import pathlib

from txl_keras.evaluation.surprise import SurpriseReader

_TEMPLATE = pathlib.Path(__file__).with_name("surprise_page.html")


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
    reader = SurpriseReader(
        model, tokenizer, segment_length, memory_length, num_candidates
    )
    return fill_page(title, reader.read(reader.encode(text)))


def fill_page(title, data):
    """Returns the page of what `SurpriseReader.read` found."""
    return fill_template(_TEMPLATE, title, data)


def fill_template(template, title, data):
    """Returns the HTML of a template file, with a title and data for it."""
    # Nothing in the data can end the script element that holds it.
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = template.read_text("utf-8")
    return page.replace("{{title}}", html.escape(title)).replace(
        "{{data}}", content
    )
