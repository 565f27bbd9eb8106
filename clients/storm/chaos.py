"""What stands between clients and the gateway, and is not to be relied on: a proxy that resets, cuts, stalls, and answers 503 or 202 by itself.

A 202 is in the gateway's words, and names the operation there. A client asks where it says, or by its request again if it does not.
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import re
import socket
import struct
import threading

#: How often what happens to a request; the rest goes through.
ODDS = {
    "reset before": 0.04,
    "503, not forwarded": 0.03,
    "503, forwarded": 0.03,
    "reset after": 0.04,
    "cut answer": 0.03,
    "stalled answer": 0.03,
    "202, forwarded": 0.03,
}
#: What clients ask about accepted work, by the way; and what of it the gateway itself has said.
QUESTIONS = "questions about accepted work"
ACCEPTED = "202 of the gateway's own"
LATER = "and what it said of such work later"


class Chaos:
    """Runs in a thread of its own until the process ends."""

    def __init__(self, ports: list[int], stall_s: float, seed: int) -> None:
        """`ports` are the gateway's own, and its operators'."""
        self.port_of_gateway, self.port_of_admin = ports
        self.stall_s = stall_s
        self.is_calm = False
        self.count: collections.Counter[str] = collections.Counter()
        # Held here: of a task whose client has hung up the loop keeps no hold, and what waits could be collected as garbage.
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._dice = random.Random(seed)
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    def is_idle(self) -> bool:
        """Nothing is on its way to the gateway."""
        return not self._tasks

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            await self._request(head, body, writer)
        except (OSError, asyncio.IncompleteReadError):
            _reset(writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _request(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        what = self._roll()
        self.count[what] += 1
        if head.startswith(b"GET /.oncegate/"):
            self.count[QUESTIONS] += 1
        if what == "reset before":
            return _reset(writer)
        if what == "503, not forwarded":
            return _unavailable(writer)
        answer = await _exchange(self.port_of_gateway, _alone(head) + body)
        self._note(head, answer)
        if what == "202, forwarded":
            answer = await self._accepted(head) or answer
        if what == "503, forwarded":
            return _unavailable(writer)
        if what == "reset after":
            return _reset(writer)
        if what == "stalled answer":
            await asyncio.sleep(self.stall_s)
        writer.write(answer[: len(answer) // 2] if what == "cut answer" else answer)
        await writer.drain()

    def _note(self, head: bytes, answer: bytes) -> None:
        """Of work that it does later the gateway says 202, and later its answer, where it was asked about."""
        if answer.startswith(b"HTTP/1.1 202 "):
            self.count[ACCEPTED] += 1
        elif head.startswith(b"GET /.oncegate/") and b"\r\nidempotency-replayed: true" in answer.lower():
            self.count[LATER] += 1

    def _roll(self) -> str:
        point = self._dice.random()
        for what, odds in ODDS.items():
            if not self.is_calm and point < odds:
                return what
            point -= odds
        return "through"

    async def _accepted(self, head: bytes) -> bytes | None:
        """Where to ask about this request's operation; None if the gateway has no record of it, or this is such a question."""
        key = re.search(rb'(?i)\r\nidempotency-key: *"([^"]*)"', head)
        if key is None:
            return None
        question = b"GET /api/v1/records?key=%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % key[1]
        answer = await _exchange(self.port_of_admin, _alone(question))
        records = json.loads(answer.partition(b"\r\n\r\n")[2])["records"]
        if not records:
            return None
        # As the gateway says it, of work that it was given to do later. Half of the time where to ask is lost on the way.
        id_ = records[0]["id"]
        body = json.dumps({"id": id_, "state": "in_progress", "retry_after_s": 1})
        where = f"location: /.oncegate/operations/{id_}\r\n" if self._dice.random() < 0.5 else ""
        start = f"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\nretry-after: 1\r\ncache-control: no-store\r\n{where}"
        return f"{start}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


def _alone(head: bytes) -> bytes:
    """The head of a request that is the last of its connection."""
    return re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head).replace(b"\r\n", b"\r\nconnection: close\r\n", 1)


async def _exchange(port: int, request: bytes) -> bytes:
    """Everything that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = await reader.read()
        if not answer:
            raise ConnectionResetError
        return answer
    finally:
        writer.close()


def _unavailable(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


def _reset(writer: asyncio.StreamWriter) -> None:
    socket_ = writer.get_extra_info("socket")
    if socket_ is not None:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
