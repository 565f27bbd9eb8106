"""A server that does what a script says, request by request, and writes down what it was sent."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from oncegate_client import Limits

CLIENTS = Path(__file__).resolve().parents[2]
CERTIFICATE = CLIENTS / "for-tests.pem"
CONTRACT: dict[str, Any] = json.loads((CLIENTS / "contract.json").read_text("utf-8"))


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Scripted:
    """Used in a `with`."""

    def __init__(self, steps: list[dict[str, Any]], tls: bool = False) -> None:
        self.steps = steps
        self.requests: list[Asked] = []
        self.is_asked = threading.Event()
        self.is_over = threading.Event()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.requests.append(Asked(self.command, self.path, headers, body))
                script.is_asked.set()
                script.perform(self)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.server.daemon_threads = True
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}/payments"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            # The handshake is for the handler's thread, not for the one that accepts.
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)

    def __enter__(self) -> Scripted:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.is_over.set()
        self.server.shutdown()
        self.server.server_close()

    def keys(self) -> list[str | None]:
        return [asked.headers.get("idempotency-key") for asked in self.requests]

    def perform(self, handler: BaseHTTPRequestHandler) -> None:
        number = len(self.requests)
        last = self.steps[-1]
        step = self.steps[number - 1] if number <= len(self.steps) else last if last.get("forever") else {"status": 599}
        handler.close_connection = True
        match step.get("do"):
            case "hang":
                self.is_over.wait()
            case "drip" | "trickle" as what:
                length = b"content-length: 100000\r\n" if what == "drip" else b"idempotency-expires: x\r\n"
                handler.wfile.write(b"HTTP/1.1 201 Created\r\nconnection: close\r\n" + length + b"\r\n")
                while not self.is_over.wait(0.02):
                    try:
                        handler.wfile.write(b".")
                    except OSError:
                        return
            case "reset":
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # The handler's own files would keep it open.
                socket.close(handler.connection.detach())
            case "cut":
                handler.wfile.write(b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\nidempotency-expires: x\r\n\r\n{")
            case "cut_head":
                handler.wfile.write(b"HTTP/1.1 403 Forbidden\r\nidempotency-expires: x\r\nconte")
            case _:
                answer(handler, step)


def answer(handler: BaseHTTPRequestHandler, step: dict[str, Any]) -> None:
    headers: dict[str, str] = {}
    for mark in ("kept", "replayed"):
        if step.get(mark):
            headers |= CONTRACT[mark]
    headers |= step.get("headers", {})
    body = step.get("json")
    if problem := step.get("problem"):
        headers["content-type"] = "application/problem+json"
        body = {"type": f"https://oncegate.dev/problems/{problem}", "status": step["status"], "code": problem, **step.get("more", {})}
    text = b"" if body is None else json.dumps(body).encode()
    handler.send_response(step["status"])
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)


def limits(more: dict[str, int] | None = None, **overridden: float) -> Limits:
    """The limits of a case, as the client spells them."""
    given: dict[str, Any] = {}
    for name, value in {**CONTRACT["limits"], **(more or {})}.items():
        given[name.replace("_ms", "_s")] = value / 1000 if name.endswith("_ms") else value
    return Limits(**{**given, **overridden})
