"""The payments example behind a real gateway: processes that are started, asked, killed, and never left behind."""

from __future__ import annotations

import atexit
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Reached only if something is broken.
FOREVER_S = 300.0
ANYWHERE = "127.0.0.1:0"
PROBE = Path(__file__).resolve().parents[2] / "examples/payments/gateway/probe.toml"
#: The path behind that of payments where they are done later.
LATER = "/later"
#: Far longer than anything in this town is late, also on a machine that stands still for a while, is the horizon.
CARE = """
lease = "2s"
attempt_deadline = "2m"
forward_key = "derived"
horizon = "20s"
"""
ASKING = """
timeout = "5s"
backoff = "50ms"
backoff_max = "200ms"
park_after = 1000
"""
#: Every way in which a provider can go wrong that is not about webhooks.
FAULTS = [
    "slow",
    "timeout-after-charge",
    "reset-before-charge",
    "reset-after-charge",
    "late-charge",
    "decline",
    "error-before-charge",
    "error-after-charge",
]


def program(variable: str) -> list[str]:
    """A program, and perhaps words that come before its arguments."""
    return shlex.split(os.environ[variable])


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + FOREVER_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain until {what}")
        time.sleep(0.02)


class Process:
    """A program that says where it listens, and may be killed and started again on the same port."""

    def __init__(self, command: list[str], says: str) -> None:
        self.command = command
        self.says = re.compile(says)
        atexit.register(self.kill)
        # SIGTERM would end this process without that.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        self.start()

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
        self.child = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        assert self.child.stdout
        said = []
        for line in self.child.stdout:
            said.append(line)
            if found := self.says.search(line):
                self.ports = [int(port) for port in found.groups()]
                # Always read, so that it never waits for somebody to listen.
                threading.Thread(target=self.child.stdout.read, daemon=True).start()
                return
        raise RuntimeError(f"{self.command} did not start:\n{''.join(said)}")

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()


class Town:
    """Provider, API and gateway, with their files in a folder."""

    def __init__(self, folder: Path, programs: dict[str, list[str]]) -> None:
        self.folder = folder
        self.provider = Process(
            [*programs["provider"], "--listen", ANYWHERE, "--ledger", str(folder / "provider.db"), "--no-idempotency", "--delay-ms", "50"],
            r"http://127\.0\.0\.1:(\d+)",
        )
        book = ["--book", str(folder / "payments.db"), "--patience-ms", "200"]
        provider = ["--provider", f"127.0.0.1:{self.provider.ports[0]}"]
        self.api = Process([*programs["api"], "--listen", ANYWHERE, *book, *provider], r"http://127\.0\.0\.1:(\d+)")
        # From now on it is found where it is.
        self.api.command[self.api.command.index(ANYWHERE)] = f"127.0.0.1:{self.api.ports[0]}"
        config = folder / "gateway.toml"
        self._configure(config, 0, 0)
        listens = r"oncegate listens on http://127\.0\.0\.1:(\d+) .*http://127\.0\.0\.1:(\d+)"
        self.gateway = Process([*programs["gateway"], "serve", "--log", "error", "--config", str(config)], listens)
        self._configure(config, *self.gateway.ports)

    def _configure(self, config: Path, port: int, admin: int) -> None:
        config.write_text(
            f"""
[listen]
address = "127.0.0.1:{port}"
[admin]
address = "127.0.0.1:{admin}"
[upstream]
url = "http://127.0.0.1:{self.api.ports[0]}"
[store]
url = "sqlite://{self.folder / "oncegate.db"}"
[workers]
reconcile_every = "50ms"
sweep_every = "100ms"
deferred_every = "50ms"
[defaults]
profile = "payments"
{CARE}
[defaults.probe]
{ASKING}
{PROBE.read_text("utf-8")}
# Accepted now, and run by the gateway itself, whatever becomes of it and of its client meanwhile.
[[route]]
match = "POST /payments{LATER}"
profile = "accepted"
request_headers = ["content-type", "authorization"]
wait_limit = "500ms"
{CARE}
[route.probe]
{ASKING}
{PROBE.read_text("utf-8")}
""",
            "utf-8",
        )

    def close(self) -> None:
        for process in [self.gateway, self.api, self.provider]:
            process.kill()

    def faults(self, odds: dict[str, float]) -> None:
        url = f"http://127.0.0.1:{self.provider.ports[0]}/faults"
        body = json.dumps(odds).encode()
        urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}, method="PUT")).close()

    def records(self, query: str = "") -> list[dict[str, Any]]:
        """All records of the gateway."""
        found, after = [], ""
        while True:
            page = self._get(self.gateway.ports[1], f"/api/v1/records?limit=500{query}{after}")
            found.extend(page["records"])
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def comes_to_rest(self) -> None:
        """Until nobody is at work: what happens has happened."""
        states = ["pending", "in_progress"]
        wait_until("nothing is done, or waits to be", lambda: not any(self.records(f"&state={state}") for state in states))
        wait_until("nothing is still to come", lambda: self._get(self.provider.ports[0], "/ledger")["still_to_come"] == 0)

    def charges(self) -> dict[int, list[str]]:
        """The provider's ledger: the names of all charges that succeeded, by amount."""
        charges: dict[int, list[str]] = {}
        with sqlite3.connect(self.folder / "provider.db") as ledger:
            for amount, no in ledger.execute("SELECT amount, no FROM charge WHERE status = 'succeeded'"):
                charges.setdefault(amount, []).append(f"ch_{no}")
        return charges

    def _get(self, port: int, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=FOREVER_S) as answer:
            return json.load(answer)
