"""The page of surprising tokens: its numbers, and how a browser shows it."""

import html.parser
import json
import math

import numpy as np
import pytest
from contrast import check_contrast
from contrast import luminance
from factories import small_model

from txl_keras.data import ByteTokenizer
from txl_keras.data import IdTokenizer
from txl_keras.pages import surprise_page

T = 7  # of `reader`
TEXT = "a <b>é</b>\n\t</script><script>window.hacked = 1</script> & 'x' \\u003c"


@pytest.fixture(scope="module")
def page(model):
    return surprise_page(model, TEXT, None, T, title="A <i>title</i>")


class _Elements(html.parser.HTMLParser):
    """Collects the names and attributes of elements, and the data."""

    def __init__(self, page):
        super().__init__()
        self.found, self.data = [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][1].get("id") == "data":
            self.data = self.data or json.loads(data)


def bits_of(model, ids, memory=None):
    nll, memory = model.score(ids[None, :-1], ids[None, 1:], memory)
    return nll.numpy()[0] / math.log(2), memory


def test_bits_are_those_of_the_model_with_memory_and_without(model, page):
    tokens = _Elements(page).data["tokens"]
    ids = np.frombuffer(TEXT.encode(), "uint8").astype("int32")
    assert len(tokens) == len(ids)
    assert tokens[0]["bits"] is tokens[0]["cold"] is None
    memory, differs = None, False
    for start in range(0, len(ids) - 1, T):
        part = ids[start : start + T + 1]
        bits, memory = bits_of(model, part, memory)
        cold, _ = bits_of(model, part)
        found = tokens[start + 1 : start + T + 1]
        np.testing.assert_allclose(
            [token["bits"] for token in found], bits, atol=2e-3
        )
        np.testing.assert_allclose(
            [token["cold"] for token in found], cold, atol=2e-3
        )
        differs |= np.abs(bits - cold).max() > 0.1
    assert differs


def test_the_likeliest_tokens_are_those_of_the_model(model, page):
    data = _Elements(page).data
    ids = np.frombuffer(TEXT.encode(), "uint8")[None, :T].astype("int32")
    probabilities = np.exp(model.log_probs(ids)[0].numpy()[0])
    for i in range(T):
        likeliest = data["tokens"][i + 1]["likeliest"]
        order = np.argsort(-probabilities[i])[:5]
        assert [token for token, _ in likeliest] == order.tolist()
        np.testing.assert_allclose(
            [p for _, p in likeliest], probabilities[i][order], atol=1e-4
        )
    assert set(data["names"]) == {
        str(token)
        for entry in data["tokens"]
        for token, _ in entry["likeliest"]
    }


def test_the_text_of_a_stranger_is_no_part_of_the_page(page):
    elements = _Elements(page)
    names = [name for name, _ in elements.found]
    assert names.count("script") == 2 and "b" not in names and "i" not in names
    assert "".join(t["text"] for t in elements.data["tokens"]) == TEXT
    for _, attributes in elements.found:
        assert not {"src", "href", "onload", "onerror"} & set(attributes)
    assert "http:" not in page and "https:" not in page


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"ab\xc3\xa9", ["a", "b", "", "é"]),
        (b"\xffa", ["\ufffd", "a"]),  # no byte of a character
        (b"a\xc3", ["a", "\ufffd"]),  # a character that is cut off
    ],
)
def test_each_token_has_its_text(reader, data, texts):
    tokens = reader.read(np.frombuffer(data, "uint8"))["tokens"]
    assert [token["text"] for token in tokens] == texts


def test_wrong_arguments_are_errors():
    model = small_model(vocabulary_size=256, num_layers=1)
    size = "`text` must have at least 2 and"
    for wrong, message in (
        ({"tokenizer": None}, "`tokenizer` must be set"),
        ({"tokenizer": IdTokenizer(11)}, "`tokenizer` must have as many"),
        *(({"text": text}, size) for text in ("a", "a" * 20_001)),
        ({"text": np.array([3, 256])}, "`text` must hold integers"),
        ({"text": [[1, 2], [3, 4]]}, "`text` must"),
    ):
        call = {"text": TEXT, "tokenizer": ByteTokenizer(), **wrong}
        with pytest.raises(ValueError, match=message):
            surprise_page(model, **call)


def test_a_score_comes_with_a_page(group, corpus, succeed):
    printed = succeed(
        "evaluate.py", f"--workdir={group[0]}", f"--corpus={corpus}", "--html",
        "--max_eval_tokens=50",
    )  # fmt: skip
    path = group[0] / "evaluation_test.html"
    assert f"Written to {path}" in printed
    data = _Elements(path.read_text("utf-8")).data
    assert len(data["tokens"]) == 50 and data["segment_length"] == 5


# === In a browser ===


@pytest.fixture
def opened(browser, page, tmp_path):
    path = tmp_path / "surprise.html"
    path.write_text(page, "utf-8")
    browser.get(path.as_uri())
    yield browser
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None


def text_of(browser, name):
    return browser.find_element("id", name).text


def test_the_pointer_shows_a_token(opened):
    from selenium.webdriver import ActionChains

    assert opened.title == "A <i>title</i>"
    assert "No token is selected" in text_of(opened, "details")
    spans = opened.find_elements("css selector", "#text span")
    # The two bytes of é are one element.
    assert len(spans) == len(TEXT)
    ActionChains(opened).move_to_element(spans[5]).perform()
    assert "“é”" in text_of(opened, "bits")
    assert "bits with memory" in text_of(opened, "bits")
    rows = opened.find_elements("css selector", "#likeliest tr")
    assert len(rows) == 5 and rows[0].text.endswith("%")
    # The sum of both bytes.
    tokens = _Elements(opened.page_source).data["tokens"]
    bits = tokens[5]["bits"] + tokens[6]["bits"]
    assert f"{bits:.2f} bits with memory" in text_of(opened, "bits")


def test_keys_move_from_token_to_token_and_line_to_line(opened):
    from selenium.webdriver import Keys

    area = opened.find_element("id", "text")
    area.send_keys(Keys.ARROW_RIGHT)
    assert text_of(opened, "bits").startswith("“␣”")
    area.send_keys(Keys.ARROW_RIGHT)
    assert text_of(opened, "bits").startswith("“<”")
    area.send_keys(Keys.HOME)
    assert "first token has nothing" in text_of(opened, "bits")
    for _ in range(2):  # there is no third line
        area.send_keys(Keys.ARROW_DOWN)
        assert text_of(opened, "bits").startswith("“⇥”")
    area.send_keys(Keys.ARROW_UP)
    assert "first token has nothing" in text_of(opened, "bits")


def test_an_address_leads_to_a_token(opened):
    opened.get(f"{opened.current_url}#5")
    assert text_of(opened, "bits").startswith("“é”")
    assert opened.find_element("css selector", "#text .current").text == "é"


def test_the_switch_shows_what_memory_changes_also_by_kind(opened):
    table = opened.find_element("id", "kinds")
    assert not table.is_displayed()
    opened.find_element("css selector", "input[value=change]").click()
    assert table.is_displayed()
    assert "bits that memory saves" in text_of(opened, "legend")
    numbers = table.find_elements("css selector", "tbody td:nth-child(2)")
    # The first token has no bits.
    assert sum(int(number.text) for number in numbers) == len(TEXT) - 1


def test_two_texts_stand_side_by_side(opened):
    columns = opened.find_elements("class name", "column")
    assert [column.is_displayed() for column in columns] == [True, False]
    opened.find_element("css selector", "input[value=both]").click()
    assert all(column.is_displayed() for column in columns)
    warm, cold = columns
    assert warm.rect["y"] == cold.rect["y"] and warm.rect["x"] < cold.rect["x"]
    cold.find_elements("tag name", "span")[2].click()
    marked = opened.find_elements("class name", "current")
    assert [span.text for span in marked] == ["<", "<"]


def test_text_has_contrast(opened, scheme):
    colors = opened.execute_script("""
        const area = document.getElementById("text");
        const kinds = ["s1", "s2", "s3", "s4", "s5", "s6", "h1", "h2", "h3",
                       "u1", "u2", "u3"];
        return kinds.map((kind) => {
          const node = document.createElement("span");
          node.className = kind;
          area.append(node);
          const style = getComputedStyle(node);
          const found = [style.color, style.backgroundColor];
          node.remove();
          return found;
        }).concat([[getComputedStyle(document.body).color,
                    getComputedStyle(document.body).backgroundColor]]);
    """)
    check_contrast(colors)
    dark_page = luminance(colors[-1][1]) < 0.1
    assert dark_page == (scheme == "dark")
