"""Takes orders, and knows nothing of retries: the gateway in front sends it each of them once.

All it does for that: it keeps the key that it is sent, and can be asked for it, so that the gateway finds out what became of an order whose
answer was lost.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

FILE = Path(os.environ.get("ORDERS", "orders.jsonl"))
orders = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()] if FILE.exists() else []
file = FILE.open("a", encoding="utf-8")
taking = threading.Lock()


def take(item, key):
    with taking:
        order = {"id": len(orders) + 1, "item": item, "key": key}
        file.write(json.dumps(order) + "\n")
        file.flush()
        os.fsync(file.fileno())
        orders.append(order)
        return order


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path != "/orders":
            return self.answer(404, {"error": "there are only /orders"})
        key = parse_qs(url.query).get("key", [None])[0]
        self.answer(200, {"orders": [order for order in list(orders) if key is None or order["key"] == key]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if urlsplit(self.path).path != "/orders":
            return self.answer(404, {"error": "there are only /orders"})
        try:
            item = json.loads(body)["item"]
        except (ValueError, KeyError, TypeError):
            item = None
        if not isinstance(item, str):
            return self.answer(422, {"error": 'an order is {"item": "…"}'})
        self.answer(201, take(item, self.headers.get("idempotency-key", "").replace('"', "")))

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Orders)
print("listens on", server.server_port, flush=True)
server.serve_forever()
