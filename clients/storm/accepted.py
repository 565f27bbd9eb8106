"""Work that a real gateway accepts, and does later: what one client makes of it, step by step.

Usage: accepted.py NAME -- DRIVER…, with a driver as for storm.py. Nothing here goes wrong by chance, and nothing is waited for that could have
come earlier: what the gateway says is listened to, and what it does is let go on.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from chaos import Chaos
from storm import PLENTY, Driver, Job, Told
from town import ANYWHERE, FOREVER_S, Process, program, wait_until


class Upstream:
    """Does one after the other, when it is let go on; or answers that it failed."""

    def __init__(self) -> None:
        self.posts = 0
        self.fails = False
        self.gate = threading.Semaphore(0)
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                upstream.posts += 1
                if upstream.fails:
                    return self._answers(500, b"{}")
                upstream.gate.acquire()
                self._answers(201, body)

            def _answers(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Listening(Chaos):
    """Stands between client and gateway, does nothing, and hears everything."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(ports, 0.0, 0)
        self.is_calm = True
        self.heard: list[tuple[str, int, str]] = []

    def _note(self, head: bytes, answer: bytes) -> None:
        line = head.decode().split("\r\n", 1)[0].rsplit(" ", 1)[0]
        status = int(answer.split(b" ", 2)[1])
        self.heard.append((line, status, answer.decode()))

    def location(self) -> str:
        """Where the last that was accepted is."""
        answer = next(answer for line, status, answer in reversed(self.heard) if line.startswith("POST") and status == 202)
        lines = [line.split(": ", 1) for line in answer.split("\r\n\r\n")[0].split("\r\n")[1:]]
        return next(value for name, value in lines if name.lower() == "location")


class Scene:
    """A client, a gateway that does one thing at a time, and what is behind it."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.command = command
        self.folder = folder
        self.upstream = Upstream()
        config = folder / "gateway.toml"
        config.write_text(
            f"""
[listen]
address = "{ANYWHERE}"
[admin]
address = "{ANYWHERE}"
[upstream]
url = "http://127.0.0.1:{self.upstream.port}"
[store]
url = "sqlite://{folder / "oncegate.db"}"
[workers]
deferred_max = 1
[defaults]
profile = "accepted"
wait_limit = "{FOREVER_S:.0f}s"
""",
            "utf-8",
        )
        listens = r"oncegate listens on http://127\.0\.0\.1:(\d+) .*http://127\.0\.0\.1:(\d+)"
        self.gateway = Process([*program("ONCEGATE_BIN"), "serve", "--log", "error", "--config", str(config)], listens)
        self.between = Listening(self.gateway.ports)

    def begins(self, name: str, prefer: str | None = None) -> Driver:
        """The client begins an operation."""
        job: Job = {"name": name, "path": "", "prefer": prefer, "amount": 100, "currency": "EUR"}
        job |= {"deadline_ms": FOREVER_S * 1000, "attempts_max": PLENTY}
        url = f"http://127.0.0.1:{self.between.port}/payments"
        return Driver(self.command, url, self.folder, [job], try_timeout_ms=int(FOREVER_S * 1000))

    def hears(self, what: str, begins: str, status: int, words: str = "") -> None:
        def has_heard() -> bool:
            heard = list(self.between.heard)
            return any(line.startswith(begins) and one == status and words in answer for line, one, answer in heard)

        wait_until(what, has_heard)

    def accepted(self) -> int:
        return sum(line.startswith("POST") and status == 202 for line, status, _ in list(self.between.heard))

    def is_at_work(self, posts: int) -> None:
        wait_until("the upstream is asked", lambda: self.upstream.posts >= posts)

    def is_taken_back(self) -> bool:
        """Its owner cancels what was accepted last; false if it is being done."""
        url = f"http://127.0.0.1:{self.gateway.ports[0]}{self.between.location()}"
        request = urllib.request.Request(url, headers={"authorization": "Bearer storm"}, method="DELETE")
        try:
            with urllib.request.urlopen(request) as answer:
                return bool(answer.status == 204)
        except urllib.error.HTTPError as refused:
            assert refused.code == 409, refused
            return False


QUESTION = "GET /.oncegate/operations/op_"


def is_asked_about_and_answered(scene: Scene) -> None:
    driver = scene.begins("polled")
    scene.hears("it was accepted", "POST /payments", 202, '"state":"pending"')
    scene.hears("it was asked about", QUESTION, 202, '"state":"in_progress"')
    scene.upstream.gate.release()
    told = _only(driver)
    _is(told, outcome="happened", status=201, replayed=True)
    lines = [line for line, _, _ in scene.between.heard]
    assert lines.count("POST /payments") == 1 and lines[-1].startswith(QUESTION), lines
    assert scene.upstream.posts == 1, scene.upstream.posts


def is_held_while_its_client_prefers_to_wait(scene: Scene) -> None:
    driver = scene.begins("preferred", prefer=f"wait={FOREVER_S:.0f}")
    scene.is_at_work(1)
    scene.upstream.gate.release()
    _is(_only(driver), outcome="happened", status=201, replayed=False, attempts=1)


def is_taken_back_before_it_began(scene: Scene) -> None:
    first = scene.begins("first")
    scene.is_at_work(1)
    second = scene.begins("second")
    wait_until("the second is accepted too", lambda: scene.accepted() == 2)
    assert scene.is_taken_back()
    told = _only(second)
    _is(told, outcome="did_not_happen", why="cancelled", status=410)
    assert "attempted" not in json.loads(told["body"]), told
    scene.upstream.gate.release()
    _is(_only(first), outcome="happened", status=201)
    assert scene.upstream.posts == 1, "what was taken back was never begun"


def is_taken_back_after_an_attempt_that_may_have_acted(scene: Scene) -> None:
    """A 500 is released on the API's word: for all that anybody knows it has charged."""
    scene.upstream.fails = True
    driver = scene.begins("attempted")
    scene.hears("it was accepted", "POST /payments", 202)
    scene.is_at_work(1)
    wait_until("it waits to be tried again, and is taken back", scene.is_taken_back)
    told = _only(driver)
    _is(told, outcome="may_have_happened", why="cancelled", status=410)
    assert json.loads(told["body"])["attempted"] is True, told


def _only(driver: Driver) -> Told:
    [told] = driver.ends()
    return told


def _is(told: Told, **expected: Any) -> None:
    found = {name: told[name] for name in expected}
    assert found == expected, f"{expected} was expected, and it is {told}"


SCENES: list[Callable[[Scene], None]] = [
    is_asked_about_and_answered,
    is_held_while_its_client_prefers_to_wait,
    is_taken_back_before_it_began,
    is_taken_back_after_an_attempt_that_may_have_acted,
]


def main() -> None:
    name, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        sys.exit(__doc__)
    for scene in SCENES:
        with tempfile.TemporaryDirectory(prefix="oncegate-accepted-") as folder:
            stage = Scene(command, Path(folder))
            try:
                scene(stage)
            finally:
                stage.gateway.kill()
        print(f"{name}: what is accepted {scene.__name__.replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    main()
