import numpy as np
import pytest
import tensorflow as tf
from factories import small_model
from sentence_pieces import build_subwords

from txl_keras.data import CharacterTokenizer
from txl_keras.serving import Sampler
from txl_keras.serving.export_folders import traced
from txl_keras.serving.graph_tokenizers import GraphTokenizer
from txl_keras.serving.served_model import SAMPLING
from txl_keras.serving.served_model import ServedModel

TEXTS = ["né à côté", "o", "être ou ne pas être, non"]
TOKENIZER = CharacterTokenizer(sorted(set("".join(TEXTS))))


@pytest.fixture(scope="module")
def model():
    return small_model(vocabulary_size=TOKENIZER.vocabulary_size, num_layers=1)


@pytest.fixture(scope="module")
def signatures(model):
    # Prompts are read in the segments of the generator, or they see less.
    sizes = {"score_text": 5, "generate_text": 128}
    tokenizer, signatures = GraphTokenizer(TOKENIZER), {}
    for name, size in sizes.items():
        endpoint = ServedModel(model, 6, size).endpoints(tokenizer)[name]
        signatures[name] = traced(*endpoint, 9, SAMPLING)
    return signatures


def test_scores_are_those_of_python(model, signatures):
    scores = signatures["score_text"](tf.constant(TEXTS))
    model.tokenizer = TOKENIZER
    expected = model.score_texts(TEXTS, batch_size=3, segment_length=5)
    for row, (ids, nll) in enumerate(expected):
        assert scores["lengths"][row] == len(ids)
        np.testing.assert_array_equal(scores["ids"][row, : len(ids)], ids)
        token_nll = scores["token_nll"][row].numpy()
        # Python's attention goes by blocks: sums in another order.
        np.testing.assert_allclose(
            token_nll[1 : len(ids)], nll[1:], rtol=1e-5, atol=1e-5
        )
        assert (token_nll[len(ids) :] == 0).all() and token_nll[0] == 0
        np.testing.assert_allclose(
            scores["nll"][row], np.nansum(nll), atol=1e-4
        )


def test_texts_of_one_token_have_no_score(signatures):
    scores = signatures["score_text"](tf.constant(["n", "e"]))
    np.testing.assert_array_equal(scores["token_nll"], [[0], [0]])


def test_text_is_that_of_the_generator(model, signatures):
    prompts = [TEXTS[0], TEXTS[2]]
    written = signatures["generate_text"](
        tf.constant(prompts), tf.constant(9), seed=tf.constant(4),
        top_k=tf.constant(4),
    )  # fmt: skip
    expected = model.generate(
        [TOKENIZER.encode(prompt) for prompt in prompts],
        max_new_tokens=9,
        sampler=Sampler(top_k=4),
        seed=4,
        strip_prompt=True,
    )
    np.testing.assert_array_equal(written["ids"], expected)
    for text, row in zip(written["text"].numpy(), expected, strict=True):
        assert text == TOKENIZER.decode_bytes(row)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("score_text", {"text": ["e", ""]}, "`text` must have at least one t"),
        ("score_text", {"text": ["e", "eZ"]}, "The symbol Z of row 1 is not i"),
        ("generate_text", {"prompt": [""]}, "`prompt` must have .* one token"),
        ("generate_text", {"prompt": np.array([], str)}, "`prompt` .* one row"),
        ("generate_text", {"length": -1}, "`length` must hold integers"),
        ("generate_text", {"length": 4097}, "`length` must .*, 4097"),
        ("generate_text", {"top_p": 0.0}, "`top_p`"),
    ],
)
def test_what_cannot_be_is_refused(signatures, name, arguments, message):
    if name == "generate_text":
        arguments = {"prompt": ["e"], "length": 2, **arguments}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures[name](**{k: tf.constant(v) for k, v in arguments.items()})


def test_the_last_subword_of_a_prompt_is_drawn_again():
    tokenizer = build_subwords("bpe")
    model = small_model(
        vocabulary_size=tokenizer.vocabulary_size,
        num_layers=1,
        initializer_stddev=1.0,
    )
    model.tokenizer = tokenizer
    endpoint = ServedModel(model, 6, 128).endpoints(GraphTokenizer(tokenizer))
    write = traced(*endpoint["generate_text"], 9, SAMPLING)
    prompts = ["The cat ", "the ha", "é", "The\n", " ", "on the mat, "]
    written = write(tf.constant(prompts), tf.constant(7), seed=tf.constant(4))
    # The subword that is drawn again is one of the 7.
    expected = model.generate(
        prompts, max_new_tokens=6, seed=4, strip_prompt=True
    )
    found = written["text"].numpy()
    assert [text.decode("utf-8", "replace") for text in found] == expected
    none = write(tf.constant(prompts), tf.constant(0))
    assert [*none["text"].numpy()] == [b""] * len(prompts)
    ends = [tokenizer.encode(prompt)[-1] for prompt in prompts]
    # Some are longer, and prompts of one token are read as they are.
    assert (written["ids"].numpy()[:, 0] != ends).sum() > 2
