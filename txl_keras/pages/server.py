"""The web server of `txl demo`, built with Python's standard library."""

import contextlib
import http.server
import ipaddress
import json
import pathlib
import socket
import socketserver
import sys
import urllib.parse

from txl_keras.json_files import parse_json
from txl_keras.pages.surprise import fill_page

_TEMPLATE = pathlib.Path(__file__).with_name("demo.html")
# Enough for the longest text that a visitor may ask about.
_MAX_QUESTION_BYTES = 256 << 10
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


class DemoServer(socketserver.ThreadingTCPServer):
    """Serves the page and the answers of a `Playground`.

    Listens when it is created, so that a port in use raises an error before a
    model is loaded. Visitors who come early wait for `serve`.
    """

    daemon_threads = allow_reuse_address = True

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

    def serve(self, playground):
        """Answers visitors until `shutdown` is called, or an exception."""
        self.playground = playground
        self.page = fill_page(_TEMPLATE, "Playground", playground.describe())
        self.serve_forever()

    def handle_error(self, request, client_address):
        """Ignores visitors who left; prints other errors."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request, then closes the connection."""

    server_version, sys_version = "txl", ""
    timeout = 30  # seconds that one read or write waits for the visitor
    disable_nagle_algorithm = True  # each token is sent immediately
    error_message_format = "%(explain)s"
    error_content_type = "text/plain; charset=utf-8"

    def do_GET(self):
        if self._is_allowed("/"):
            self._begin("text/html")
            self.wfile.write(self.server.page.encode())

    def do_POST(self):
        if not self._is_allowed("/write", "/surprise"):
            return
        # Pages of other sites cannot send this type.
        if self.headers.get_content_type() != "application/json":
            self._refuse(415, "Questions must be of type application/json.")
            return
        size = self.headers.get("Content-Length", "")
        # Python refuses to parse very long numbers.
        is_short = size.isdecimal() and len(size) <= 6
        if not is_short or int(size) > _MAX_QUESTION_BYTES:
            kib = _MAX_QUESTION_BYTES >> 10
            self._refuse(413, f"A text may have {kib} KiB at most.")
            return
        try:
            question = parse_json(self.rfile.read(int(size)), "The question")
        except ValueError as error:
            self._refuse(400, str(error))
            return
        self._begin("application/x-ndjson")
        answer = getattr(self.server.playground, self.path[1:])
        # Closed if the visitor leaves, which stops the work.
        with contextlib.closing(answer(question)) as events:
            for event in events:
                self.wfile.write(json.dumps(event).encode() + b"\n")

    def finish(self):
        # Reads the rest of a refused request: closing with bytes unread would
        # reset the connection, and the visitor could lose the answer.
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1():
                pass
        super().finish()

    def end_headers(self):
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_):
        """Prints nothing for each request."""

    def _is_allowed(self, *paths):
        """Refuses wrong paths, and requests that other sites may cause."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        is_from_page = not origin or origin.partition("://")[2] == host
        # Otherwise another site's name may resolve to this machine.
        if self.server.is_local and not _is_loopback(_name_of(host)):
            self._refuse(403, f"Open {self.server.url} instead.")
        elif not is_from_page:
            self._refuse(403, "Questions must come from the page itself.")
        elif self.path not in paths:
            self._refuse(404, "There is no such page.")
        else:
            return True
        return False

    def _begin(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()

    def _refuse(self, status, text):
        self.send_error(status, explain=text)


def _name_of(host):
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name):
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
