"""The web server of `txl demo`, with what comes with Python."""

import contextlib
import http.server
import io
import ipaddress
import json
import pathlib
import re
import socket
import socketserver
import sys
import threading
import time

from txl_keras.evaluation.surprise import fill_page
from txl_keras.json_files import parse_json

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
# Enough for the longest text that a visitor may ask about.
_MAX_QUESTION_BYTES = 256 << 10
_MAX_CONNECTIONS = 32
# host[:port], without a user name or a path.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::[0-9]+)?", re.ASCII)
_HEADERS = {
    # The frame with the surprise of a text inherits this policy.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_NO_PAGE = "There is no such page."
_BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 10\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\n\r\n"
    b"Too many connections are open. Try again in a few seconds.\n"
)


class DemoServer(socketserver.ThreadingTCPServer):
    """Serves the page and the answers of a `Playground`.

    Listens as soon as it is created, so that a port that is in use is an error
    before a model is loaded. Visitors who come early wait for `serve`.
    """

    daemon_threads = allow_reuse_address = True
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, host, port):
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise OSError(
                "`host` must be an address of this machine, and `port` one "
                "that is free; --port=0 takes any. Received: "
                f"--host={host}, --port={port} ({error})"
            ) from error
        self.is_local = _is_loopback(self.server_address[0])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/"
        self.playground = self.page = None  # until `serve`
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._refused = []

    def serve(self, playground):
        """Answers visitors until `shutdown` is called, or an exception."""
        self.playground = playground
        self.page = fill_page("Playground", playground.describe(), _TEMPLATE)
        self.serve_forever()

    def process_request(self, request, client_address):
        """Answers a connection in a thread, or refuses it at once."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.sendall(_BUSY)
            request.shutdown(socket.SHUT_WR)
        # Closed later: with the request unread, closing resets the connection,
        # and some clients then lose the answer.
        self._refused.append(request)
        if len(self._refused) > _MAX_CONNECTIONS:
            self._refused.pop(0).close()

    def process_request_thread(self, request, client_address):
        """Answers one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request, client_address):
        """Ignores visitors who left; prints other errors."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Refusal(Exception):
    """Ends a request with a status and a text."""


def _require(condition, status, text):
    if not condition:
        raise _Refusal(status, text)


class _SocketFile(io.RawIOBase):
    """Reads or writes a socket, and waits `seconds` in all for the visitor."""

    # The timeout of a socket alone would begin again at each byte.

    def __init__(self, connection, seconds):
        self._connection = connection
        self._seconds_left = seconds

    def readable(self):
        return True

    def readinto(self, buffer):
        try:
            size = self._wait(self._connection.recv_into, buffer)
        except TimeoutError:
            raise _Refusal(408, "The request did not arrive in time.") from None
        _require(size, 400, "The request ended too early.")
        return size

    def write(self, data):
        self._wait(self._connection.sendall, data)
        return len(data)

    def _wait(self, function, data):
        if self._seconds_left <= 0:
            raise TimeoutError
        self._connection.settimeout(self._seconds_left)
        start = time.monotonic()
        try:
            return function(data)
        finally:
            self._seconds_left -= time.monotonic() - start


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request, then closes the connection."""

    server_version, sys_version = "txl", ""
    requestline = ""  # until it arrives
    # Waiting for the visitor, in all. To compute an answer may take longer.
    request_seconds, answer_seconds = 10, 30

    def setup(self):
        # Each token is sent at once.
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        request = _SocketFile(self.request, self.request_seconds)
        self.rfile = io.BufferedReader(request)
        self.wfile = _SocketFile(self.request, self.answer_seconds)

    def handle(self):
        try:
            super().handle()
        except _Refusal as refusal:
            self.send_error(*refusal.args)

    def finish(self):
        # Reads the rest of a refused request: closing with bytes unread would
        # reset the connection, and the visitor could lose the answer.
        with contextlib.suppress(OSError, _Refusal):
            self.request.shutdown(socket.SHUT_WR)
            while self.rfile.read1():
                pass

    def do_GET(self):
        self._check_is_from_page()
        _require(self.path == "/", 404, _NO_PAGE)
        self._begin(200, "text/html")
        self.wfile.write(self.server.page.encode())

    def do_POST(self):
        self._check_is_from_page()
        _require(self.path in ("/write", "/surprise"), 404, _NO_PAGE)
        answer = getattr(self.server.playground, self.path[1:])
        is_json = self.headers["Content-Type"] == "application/json"
        _require(is_json, 415, "Questions must be of type application/json.")
        size = self.headers["Content-Length"]
        _require(size, 411, "Questions must have a Content-Length.")
        is_number = re.fullmatch("[0-9]+", size)
        _require(is_number, 400, "Content-Length must be a number of bytes.")
        # Python refuses to parse very long numbers.
        is_short = len(size) <= 6 and int(size) <= _MAX_QUESTION_BYTES
        kib = _MAX_QUESTION_BYTES >> 10
        _require(is_short, 413, f"A text may have {kib} KiB at most.")
        try:
            question = parse_json(self.rfile.read(int(size)), "The question")
        except ValueError as error:
            raise _Refusal(400, str(error)) from error
        self._begin(200, "application/x-ndjson")
        # Closed if the visitor leaves, which stops the work.
        with contextlib.closing(answer(question)) as events:
            for event in events:
                self.wfile.write(json.dumps(event).encode() + b"\n")

    def log_message(self, *_):
        """Prints nothing for each request."""

    def send_error(self, code, message=None, explain=None):
        """Refuses a request with a text; the base class calls this, too."""
        self._begin(code, "text/plain")
        text = message or self.responses[code][0]
        self.wfile.write(text.encode("utf-8", "replace"))

    def _check_is_from_page(self):
        """Refuses requests that other web pages make a browser send."""
        is_known = self.request_version.startswith("HTTP/1.")
        _require(is_known, 505, "The version of HTTP must be 1.0 or 1.1.")
        # Proxies and servers read these in different ways.
        is_ambiguous = "Transfer-Encoding" in self.headers or any(
            len(self.headers.get_all(name, ())) > 1
            for name in ("Host", "Origin", "Content-Type", "Content-Length")
        )
        host = self.headers.get("Host", "")
        parts = _HOST.fullmatch(host)
        is_clear = parts and not is_ambiguous and not self.headers.defects
        _require(
            is_clear,
            400,
            "A request must have one Host, host[:port], and one body.",
        )
        # Otherwise, a name of another site may lead to this machine.
        is_ours = not self.server.is_local or _is_loopback(parts[1] or parts[2])
        _require(is_ours, 403, f"Open {self.server.url} instead.")
        origin = self.headers.get("Origin")
        is_ours = not origin or origin.partition("://")[2] == host
        _require(is_ours, 403, "Questions must come from the page itself.")

    def _begin(self, status, kind):
        self.request_version = "HTTP/1.0"  # 0.9 would have no status line
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()


def _is_loopback(name):
    try:
        return (
            name.lower() == "localhost"
            or ipaddress.ip_address(name).is_loopback
        )
    except ValueError:
        return False
