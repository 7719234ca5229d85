"""The web server of `txl demo`, with what comes with Python."""

import contextlib
import http.server
import ipaddress
import json
import pathlib
import re
import socket
import socketserver
import sys
import threading
import urllib.parse

from txl_keras.evaluation.surprise_page import fill_template
from txl_keras.json_files import parse_json

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
# Enough for the longest text that a visitor may ask about.
_MAX_QUESTION_BYTES = 256 << 10
_MAX_CONNECTIONS = 32
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


class DemoServer(http.server.ThreadingHTTPServer):
    """Serves the page and the answers of a `Playground`.

    Listens as soon as it is created, so that a port that is in use is an error
    before a model is loaded. Visitors who come early wait for `serve`.

    Args:
        host: String, an address or a name of this machine.
        port: Integer; 0 for any free one.

    Attributes:
        url: String, the address of the page.
        is_local: Boolean, whether only this machine can open the page.

    Raises:
        OSError: If it cannot listen there.
    """

    daemon_threads = True

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

    def serve(self, playground):
        """Answers visitors until `shutdown` is called, or an exception."""
        self.playground = playground
        self.page = fill_template(
            _TEMPLATE, "Playground", playground.describe()
        )
        self.serve_forever()

    def server_bind(self):
        # That of the base class asks a name server for the name of the host.
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request, client_address):
        """Refuses a connection if there are too many."""
        return self._connections.acquire(blocking=False)

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


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request, then closes the connection."""

    server_version, sys_version = "txl", ""
    disable_nagle_algorithm = True  # each token is sent at once
    timeout = 30  # seconds without a byte from or to the visitor

    def do_GET(self):
        if not self._is_from_page():
            return
        if self.path != "/":
            self._refuse(404, "There is no such page.")
            return
        self._begin(200, "text/html")
        self.wfile.write(self.server.page.encode())

    def do_POST(self):
        playground = self.server.playground
        answer = {
            "/write": playground.write,
            "/surprise": playground.surprise,
        }.get(self.path)
        if not self._is_from_page():
            return
        if answer is None:
            self._refuse(404, "There is no such page.")
            return
        size = self.headers.get("Content-Length", "")
        # Six digits: Python refuses to parse very long numbers.
        is_number = re.fullmatch("[0-9]{1,6}", size)
        if not is_number or int(size) > _MAX_QUESTION_BYTES:
            self._refuse(
                413, f"A text may have {_MAX_QUESTION_BYTES >> 10} KiB at most."
            )
            return
        try:
            question = parse_json(self.rfile.read(int(size)), "The question")
        except ValueError as error:
            self._refuse(400, str(error))
            return
        self._begin(200, "application/x-ndjson")
        # Closed if the visitor leaves, which stops the work.
        with contextlib.closing(answer(question)) as events:
            for event in events:
                self.wfile.write(json.dumps(event).encode() + b"\n")

    def log_message(self, *_):
        """Prints nothing for each request."""

    def _is_from_page(self):
        """Refuses requests that other web pages make a browser send."""
        host = self.headers.get("Host", "")
        if self.server.is_local and not _is_loopback(_name(host)):
            # A name of another site that leads to this machine.
            self._refuse(403, f"Open {self.server.url} instead.")
            return False
        origin = self.headers.get("Origin")
        if origin and origin.partition("://")[2] != host:
            self._refuse(403, "Questions must come from the page itself.")
            return False
        is_json = self.headers.get("Content-Type") == "application/json"
        if self.command == "POST" and not is_json:
            self._refuse(415, "Questions must be of type application/json.")
            return False
        return True

    def _refuse(self, status, message):
        self._begin(status, "text/plain")
        self.wfile.write(message.encode("utf-8", "replace"))

    def _begin(self, status, kind):
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()


def _name(host):
    """Returns the name or address in a `Host` header, without the port."""
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name):
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
