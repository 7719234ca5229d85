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

T, M = 7, 5
TEXT = "a <b>é</b>\n\t</script><script>window.hacked = 1</script> & 'x' \\u003c"


@pytest.fixture(scope="module")
def model():
    # Large weights, so that the tokens before matter.
    return small_model(
        vocabulary_size=256, memory_length=M, initializer_stddev=0.5
    )


@pytest.fixture(scope="module")
def page(model):
    return surprise_page(
        model, TEXT, ByteTokenizer(), segment_length=T, title="A <i>title</i>"
    )


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
def test_each_token_has_its_text(model, data, texts):
    page = surprise_page(
        model, np.frombuffer(data, "uint8"), ByteTokenizer(), segment_length=T
    )
    tokens = _Elements(page).data["tokens"]
    assert [token["text"] for token in tokens] == texts


def test_ids_and_the_tokenizer_of_the_model_will_do(model, page):
    ids = np.frombuffer(TEXT.encode(), "uint8")
    model.tokenizer = ByteTokenizer()
    other = surprise_page(model, ids, segment_length=T, title="A <i>title</i>")
    model.tokenizer = None
    assert other == page


def test_wrong_arguments_are_errors(model):
    size = "`text` must have at least 2 and"
    for wrong, message in (
        ({"tokenizer": None}, "`tokenizer` must be set"),
        ({"tokenizer": IdTokenizer(11)}, "`tokenizer` must have as many"),
        *(({"text": text}, size) for text in ("", "a", "a" * 20_001)),
        ({"text": np.array([3, 256])}, "`text` must hold integers"),
        ({"text": [1.7, 2.2]}, "`text` must"),
        ({"text": [3, 2**32 + 5]}, "`text` must"),
        ({"text": None}, "`text` must"),
        ({"text": [[1, 2], [3, 4]]}, "`text` must"),
    ):
        call = {"text": TEXT, "tokenizer": ByteTokenizer(), **wrong}
        with pytest.raises(ValueError, match=message):
            surprise_page(model, **call)


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
    area.send_keys(Keys.END)
    assert text_of(opened, "bits").startswith("“c”")
    area.send_keys(Keys.HOME, Keys.ARROW_LEFT)
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


def test_a_table_shows_what_memory_changes_by_kind(opened):
    table = opened.find_element("id", "kinds")
    assert not table.is_displayed()
    opened.find_element("css selector", "input[value=change]").click()
    rows = {}
    for row in table.find_elements("css selector", "tbody tr"):
        kind = row.find_element("tag name", "th").text
        rows[kind] = [td.text for td in row.find_elements("tag name", "td")]
    tokens = _Elements(opened.page_source).data["tokens"]
    expected = {
        "spaces, indentation and line ends": " \n\t",
        "numbers": "0123456789",
        "closing brackets": ")]}",
    }
    for kind, signs in expected.items():
        found = [t for t in tokens if t["text"] and t["text"] in signs]
        if not found:
            assert kind not in rows
            continue
        number, bits, cold = map(float, rows[kind])
        assert number == len(found)
        assert bits == pytest.approx(np.mean([t["bits"] for t in found]), 0.01)
        assert cold == pytest.approx(np.mean([t["cold"] for t in found]), 0.01)
    # The first token has no bits.
    assert sum(int(row[0]) for row in rows.values()) == len(TEXT) - 1


def test_the_switch_shows_what_memory_changes(opened):
    def shades():
        spans = opened.find_elements("css selector", "#text span")
        return {
            name
            for span in spans
            for name in span.get_dom_attribute("class").split()
        }

    assert {name[0] for name in shades()} == {"s"}
    opened.find_element("css selector", "input[value=change]").click()
    assert shades() and {name[0] for name in shades()} <= {"h", "u"}
    assert "bits that memory saves" in text_of(opened, "legend")


def test_two_texts_stand_side_by_side(opened):
    columns = opened.find_elements("class name", "column")
    assert [column.is_displayed() for column in columns] == [True, False]
    opened.find_element("css selector", "input[value=both]").click()
    assert all(column.is_displayed() for column in columns)
    warm, cold = columns
    assert warm.rect["y"] == cold.rect["y"] and warm.rect["x"] < cold.rect["x"]
    limits = (1, 2, 4, 6, 8, 11)
    tokens = _Elements(opened.page_source).data["tokens"]
    bits = [token["cold"] for token in tokens if token["text"] not in ("", "é")]
    expected = [sum((b or 0) >= limit for limit in limits) for b in bits]
    found = [
        int(span.get_dom_attribute("class")[1:] or 0)
        for span in cold.find_elements("tag name", "span")
        if span.text != "é"
    ]
    assert found == expected
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
