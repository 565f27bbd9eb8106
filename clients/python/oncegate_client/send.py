"""One try: a request goes out once, and its answer is read whole, or it is said whether the request may have got through.

Each try has a connection of its own: then it is known whether one was made, and nothing is shared between threads. Not here: what an answer
means (`judge.py`), and whether there is another try (`client.py`).
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Optional, Union
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


class AnswerTooLarge(Exception):
    """The answer is longer than the client reads."""


def send(
    sending: Sending, timeout_s: float, bytes_max: int, tls: Optional[ssl.SSLContext], cancel: Optional[threading.Event]
) -> Union[Answer, NoAnswer]:
    """Sends it, for no longer than this, and reads no longer answer than this. Redirects are answers: what is behind them has another record."""
    end = time.monotonic() + timeout_s
    connection = _connection(sending.url, timeout_s, tls)
    try:
        connection.connect()
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        connection.close()
        return NoAnswer(error, is_sent=False)
    done, is_ended = threading.Event(), threading.Event()
    guard = threading.Thread(target=_guard, args=(connection.sock, done, is_ended, cancel, end), daemon=True)
    guard.start()
    try:
        answer = _exchange(connection, sending, int(bytes_max))
        if is_ended.is_set():
            # What would end with its connection looks whole when that is shut down.
            raise TimeoutError("the try was ended before its answer was read")
        return answer
    except (OSError, http.client.HTTPException, ValueError, AnswerTooLarge) as error:
        return NoAnswer(error, is_sent=True)
    finally:
        done.set()
        guard.join()
        connection.close()


class _Lines(io.BufferedReader):
    """A line that breaks off is no line: http.client takes the end of a connection for the end of a head."""

    def readline(self, size: Optional[int] = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise http.client.IncompleteRead(line)
        return line


class _Response(http.client.HTTPResponse):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fp = _Lines(self.fp.detach())


def _connection(url: SplitResult, timeout_s: float, tls: Optional[ssl.SSLContext]) -> http.client.HTTPConnection:
    host = url.hostname or ""
    if url.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=tls)
    else:
        connection = http.client.HTTPConnection(host, url.port, timeout=timeout_s)
    connection.response_class = _Response
    return connection


def _exchange(connection: http.client.HTTPConnection, sending: Sending, bytes_max: int) -> Answer:
    target = (sending.url.path or "/") + (f"?{sending.url.query}" if sending.url.query else "")
    is_asked = any(name.lower() == "accept-encoding" for name, _ in sending.headers)
    connection.putrequest(sending.method, target, skip_accept_encoding=is_asked)
    for name, value in sending.headers:
        connection.putheader(name, value)
    if sending.body is not None or sending.method != "GET":
        connection.putheader("content-length", str(len(sending.body or b"")))
    connection.putheader("connection", "close")
    connection.endheaders(sending.body)
    # Closed here: an error would hold on to it, and to its connection.
    with connection.getresponse() as response:
        return _whole(response, bytes_max)


def _whole(response: http.client.HTTPResponse, bytes_max: int) -> Answer:
    body = response.read(bytes_max + 1)
    if len(body) > bytes_max:
        raise AnswerTooLarge(f"the answer is longer than {bytes_max} bytes, and was not read")
    if response.length:
        # Asked for so many bytes, http.client does not mind if fewer come than were announced.
        raise http.client.IncompleteRead(body, response.length)
    return Answer(response.status, Headers(response.getheaders()), body)


def _guard(
    sock: socket.socket, done: threading.Event, is_ended: threading.Event, cancel: Optional[threading.Event], end: float
) -> None:
    """Ends a try whose time is up or that was given up, and says so first. The socket's own time-out is only about each read."""
    while True:
        left = end - time.monotonic()
        if done.wait(max(0.0, left if cancel is None else min(left, _LOOK_S))):
            return
        if time.monotonic() >= end or (cancel is not None and cancel.is_set()):
            is_ended.set()
            try:
                # Not TLS's own, which is not made for two threads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass
            return
