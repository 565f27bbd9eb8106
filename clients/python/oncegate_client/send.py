"""One try: a request goes out once, and its answer is read whole, or it is said whether the request may have got through.

Each try has a connection of its own: then it is known whether one was made, and nothing is shared between threads. Not here: what an answer
means (`judge.py`), and whether there is another try (`client.py`).
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Optional, Union
from urllib.parse import SplitResult

from .judge import Answer, Headers

#: How often a try under way looks whether it was given up.
_LOOK_S = 0.05


@dataclass(frozen=True)
class Sending:
    """What goes out, the same bytes each time."""

    method: str
    url: SplitResult
    headers: tuple[tuple[str, str], ...]
    body: Optional[bytes]


@dataclass(frozen=True)
class NoAnswer:
    """How a try ended without one."""

    error: Exception
    #: False only where it is proved that nothing was.
    is_sent: bool


def send(
    sending: Sending, timeout_s: float, tls: Optional[ssl.SSLContext], cancel: Optional[threading.Event]
) -> Union[Answer, NoAnswer]:
    """Sends it, for no longer than this. Redirects are answers: what is behind them has another record."""
    end = time.monotonic() + timeout_s
    connection = _connection(sending.url, timeout_s, tls)
    try:
        connection.connect()
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        connection.close()
        return NoAnswer(error, is_sent=False)
    done = threading.Event()
    guard = threading.Thread(target=_guard, args=(connection.sock, done, cancel, end), daemon=True)
    guard.start()
    try:
        return _exchange(connection, sending)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return NoAnswer(error, is_sent=True)
    finally:
        done.set()
        guard.join()
        connection.close()


def _connection(url: SplitResult, timeout_s: float, tls: Optional[ssl.SSLContext]) -> http.client.HTTPConnection:
    host = url.hostname or ""
    if url.scheme == "https":
        return http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=tls)
    return http.client.HTTPConnection(host, url.port, timeout=timeout_s)


def _exchange(connection: http.client.HTTPConnection, sending: Sending) -> Answer:
    target = (sending.url.path or "/") + (f"?{sending.url.query}" if sending.url.query else "")
    is_asked = any(name.lower() == "accept-encoding" for name, _ in sending.headers)
    connection.putrequest(sending.method, target, skip_accept_encoding=is_asked)
    for name, value in sending.headers:
        connection.putheader(name, value)
    if sending.body is not None or sending.method != "GET":
        connection.putheader("content-length", str(len(sending.body or b"")))
    connection.putheader("connection", "close")
    connection.endheaders(sending.body)
    response = connection.getresponse()
    body = response.read()
    return Answer(response.status, Headers(response.getheaders()), body)


def _guard(sock: socket.socket, done: threading.Event, cancel: Optional[threading.Event], end: float) -> None:
    """Ends a try whose time is up or that was given up. The socket's own time-out is only about each read."""
    while True:
        left = end - time.monotonic()
        if done.wait(max(0.0, left if cancel is None else min(left, _LOOK_S))):
            return
        if time.monotonic() >= end or (cancel is not None and cancel.is_set()):
            try:
                # Not TLS's own, which is not made for two threads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass
            return
