"""The examples do what their READMEs say: both APIs behind the gateway, clients started twice, everybody killed in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "storm"))
from town import Process, program  # noqa: E402

EXAMPLES = {
    "node": (["node", "server.mjs"], ["node", "client.mjs"]),
    "python": ([sys.executable, "server.py"], [sys.executable, "client.py"]),
}


def check(name: str, gateway_program: list[str], folder: Path) -> None:
    server, client = ([command, str(HERE / name / file)] for command, file in EXAMPLES[name])
    os.environ |= {"ORDERS": str(folder / "orders.jsonl"), "PORT": "0"}
    api = Process(server, r"listens on (\d+)")
    os.environ["PORT"] = str(api.ports[0])
    flags = ["--upstream", f"http://127.0.0.1:{api.ports[0]}", "--store", f"sqlite://{folder / 'oncegate.db'}"]
    anywhere = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    serve = [*gateway_program, "serve", "--config", str(HERE / name / "oncegate.toml"), *flags]
    gateway = Process([*serve, *anywhere], r"oncegate listens on http://127\.0\.0\.1:(\d+) .*http://127\.0\.0\.1:(\d+)")

    def order(*what: str, **more: str) -> str:
        environment = os.environ | {"KEYS": str(folder / "keys"), "GATEWAY": f"http://127.0.0.1:{gateway.ports[0]}"} | more
        environment["PYTHONPATH"] = str(HERE.parent / "python")
        return subprocess.run([*client, *what], env=environment, check=True, capture_output=True, text=True, timeout=300).stdout

    def ordered() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{api.ports[0]}/orders", timeout=60) as answer:
            return [one["item"] for one in json.load(answer)["orders"]]

    try:
        assert order("order 17", "apples").startswith("ordered: "), "the first"
        assert order("order 17", "apples").startswith("ordered, earlier: "), "the same again"
        api.kill()
        api.start()
        gateway.kill()
        gateway.start()
        assert order("order 17", "apples", DONE="1").startswith("ordered, earlier: "), "after both were killed"
        assert ordered() == ["apples"]
        assert order("order 17", "pears").startswith("ordered: "), "a name that was let go is free"
        assert ordered() == ["apples", "pears"]
    finally:
        gateway.kill()
        api.kill()


def main() -> None:
    if "ONCEGATE_BIN" not in os.environ:
        sys.exit(f"{__doc__}\nIn the environment: ONCEGATE_BIN, the gateway.")
    for name in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            check(name, program("ONCEGATE_BIN"), Path(folder))
            print(f"examples/{name}: as its README says")


if __name__ == "__main__":
    main()
