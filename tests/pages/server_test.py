"""The server of the demo and its page, in a browser where there is one."""

import http.client
import json
import socket
import threading
import time

import pytest
from contrast import check_contrast

from txl_keras.pages.server import DemoServer

JSON = {"Content-Type": "application/json"}
QUESTION = {
    "prompt": "a", "max_tokens": 13, "temperature": 1.0, "top_k": None,
    "top_p": None, "seed": 3, "other_memory_length": 4,
}  # fmt: skip
HOSTILE = "</textarea></script><script>window.hacked = 1</script><b>é</b>"


@pytest.fixture(scope="module")
def server(playground):
    server = DemoServer("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve, args=(playground,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(server, method, path, body=None, headers=JSON):
    """Returns the response, with its body as `text`."""
    connection = http.client.HTTPConnection(*server.server_address[:2])
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    response.text = response.read().decode("utf-8")
    connection.close()
    return response


def events_of(server, path, question):
    response = ask(server, "POST", path, json.dumps(question))
    assert response.status == 200
    return [json.loads(line) for line in response.text.splitlines()]


def test_the_page_needs_no_other_site_and_answers_are_lines_of_json(
    server, playground
):
    response = ask(server, "GET", "/")
    assert response.status == 200
    assert "http:" not in response.text and "https:" not in response.text
    policy = response.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    expected = list(playground.write(QUESTION))
    assert events_of(server, "/write", QUESTION) == expected
    *_, page, end = events_of(server, "/surprise", {"text": HOSTILE})
    assert "<script>window.hacked" not in page["page"]
    assert end == {"done": True}
    (error,) = events_of(server, "/write", {**QUESTION, "top_k": 0})
    assert "`top_k` must be" in error["error"]


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "headers"),
    [
        (404, "GET", "/etc/passwd", None, {}),
        (400, "POST", "/write", "[" * 99_999, JSON),
        (413, "POST", "/write", None, {**JSON, "Content-Length": "9" * 5000}),
        (413, "POST", "/write", None, {**JSON, "Content-Length": "-1"}),
        # Longer than what sockets buffer.
        (413, "POST", "/write", b"a" * 9_999_999, JSON),
        # What the page of another site can make a browser send.
        (415, "POST", "/write", "{}", {"Content-Type": "text/plain"}),
        (403, "POST", "/write", "{}", {**JSON, "Origin": "http://a.example"}),
        (403, "POST", "/write", "{}", {**JSON, "Origin": "null"}),
        (403, "GET", "/", None, {"Host": "a.example"}),
        (403, "GET", "/", None, {"Host": "[::1"}),
    ],
)
def test_other_requests_are_refused(
    server, status, method, path, body, headers
):
    assert ask(server, method, path, body, headers).status == status


HOST = "Host: localhost"
TYPE = "Content-Type: application/json"


def connect(server, *lines, body=""):
    """Opens a connection and sends the lines and the start of a body."""
    connection = socket.create_connection(server.server_address, timeout=10)
    connection.sendall("\r\n".join([*lines, body]).encode())
    return connection


def test_a_request_that_does_not_arrive_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.2)
    with connect(server, "GET / HTTP/1.1") as connection:
        assert connection.recv(100) == b""  # closed


def test_a_visitor_who_does_not_read_is_not_waited_for(server, monkeypatch):
    is_closed = threading.Event()

    def write_without_end(_):
        try:
            while True:
                yield {"texts": ["a" * 100_000]}
        finally:
            is_closed.set()

    monkeypatch.setattr(server.playground, "write", write_without_end)
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.2)
    lines = ["POST /write HTTP/1.1", HOST, TYPE, "Content-Length: 2", ""]
    with connect(server, *lines, body="{}"):
        assert is_closed.wait(10)


def test_a_visitor_who_leaves_is_not_waited_for(server):
    question = json.dumps({**QUESTION, "max_tokens": 2000})
    size = f"Content-Length: {len(question)}"
    lines = ["POST /write HTTP/1.0", HOST, TYPE, size, ""]
    with connect(server, *lines, body=question) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.0 200")
    *_, end = events_of(server, "/write", QUESTION)
    assert end == {"done": True}


def test_an_address_for_others_is_not_local():
    with DemoServer("0.0.0.0", 0) as server:
        assert not server.is_local


# === In a browser ===


@pytest.fixture
def opened(browser, server):
    browser.get(server.url)
    yield browser
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None
    requested = browser.execute_script(
        "return performance.getEntriesByType('resource').map((e) => e.name)"
    )
    assert all(name.startswith(server.url) for name in requested)


def wait_for(condition):
    """Waits until a condition holds, at most a minute, and returns it."""
    for _ in range(1200):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("the page did not change")


def fill_in(opened, **values):
    for name, value in values.items():
        opened.execute_script(
            "document.getElementById(arguments[0]).value = arguments[1]",
            name,
            value,
        )


def press(opened, form, button="[type=submit]"):
    opened.find_element("css selector", f"#{form} {button}").click()


def status_of(opened, form):
    return opened.find_element("css selector", f"#{form} .status").text


def write(opened, status="Done.", **values):
    """Fills in the form of texts, sends it, and waits for a status."""
    fill_in(opened, **values)
    press(opened, "write")
    wait_for(lambda: status in status_of(opened, "write"))


def texts_of(opened):
    found = opened.find_elements("css selector", "#columns .text")
    return [text.get_property("textContent") for text in found]


def test_texts_appear_side_by_side(opened, playground):
    write(opened, prompt=HOSTILE, max_tokens=20, seed=8, other=4)
    # 40 is the default of the page.
    question = {
        **QUESTION, "prompt": HOSTILE, "max_tokens": 20, "seed": 8, "top_k": 40
    }  # fmt: skip
    events = list(playground.write(question))[:-1]
    written = zip(*(event["texts"] for event in events), strict=True)
    assert texts_of(opened) == [HOSTILE + "".join(parts) for parts in written]
    columns = opened.find_elements("css selector", "#columns .column")
    assert columns[0].rect["y"] == columns[1].rect["y"]
    assert "a memory of 9 bytes" in columns[0].text
    write(opened, other="")
    assert len(texts_of(opened)) == 1


def test_a_text_can_be_stopped(opened):
    fill_in(opened, prompt="a", max_tokens=2000, other=4)
    press(opened, "write")
    wait_for(lambda: len(texts_of(opened)[0]) > 1)
    press(opened, "write", ".stop")
    wait_for(lambda: status_of(opened, "write") == "Stopped.")
    texts = texts_of(opened)
    assert 1 < len(texts[0]) < 2001
    write(opened, max_tokens=1, other="")


def test_an_error_is_a_message_and_the_page_goes_on(opened):
    write(opened, "at most 5,000 tokens", prompt="a" * 5001, max_tokens=3)
    write(opened, "256 KiB", prompt="a" * 300_000)
    # The browser reports the refused request itself.
    assert "413" in str(opened.get_log("browser"))
    write(opened, prompt="a")


def test_the_surprise_of_a_text_stands_in_a_frame(opened):
    fill_in(opened, text=HOSTILE)
    press(opened, "surprise")
    frame = opened.find_element("id", "result")
    wait_for(frame.is_displayed)
    opened.switch_to.frame(frame)
    wait_for(lambda: opened.find_elements("css selector", "#text span"))
    texts = opened.find_elements("class name", "text")
    for text in texts:
        assert text.is_displayed()
        assert text.get_property("textContent") == HOSTILE
    texts[0].find_elements("tag name", "span")[5].click()
    shown = opened.find_element("id", "bits").text
    assert "bits with memory" in shown
    assert opened.execute_script("return window.hacked") is None
    # The frame has no rights on the page around it.
    assert opened.execute_script(
        "try { return parent.document.title } catch (e) { return e.name }"
    ) in ("SecurityError", "TypeError")
    opened.switch_to.default_content()


def test_what_was_written_can_be_measured(opened):
    write(opened, prompt="ab", max_tokens=9, other="")
    opened.find_element("id", "reuse").click()
    wait_for(opened.find_element("id", "result").is_displayed)
    text = opened.find_element("id", "text").get_property("value")
    assert text == texts_of(opened)[0] and text.startswith("ab")


def test_text_and_buttons_have_contrast(opened, scheme):
    write(opened, prompt="a", max_tokens=1)
    pairs = opened.execute_script("""
        document.querySelector("#surprise .status").classList.add("error");
        const nodes = document.querySelectorAll(
          "h1, label, textarea, input, select, button:enabled, .text span, " +
          "h3, .error");
        return [...nodes].map((node) => {
          let behind = node;
          const clear = "rgba(0, 0, 0, 0)";
          while (getComputedStyle(behind).backgroundColor === clear) {
            behind = behind.parentElement;
          }
          return [getComputedStyle(node).color,
                  getComputedStyle(behind).backgroundColor];
        });
    """)
    assert len(pairs) > 15
    check_contrast(pairs)
