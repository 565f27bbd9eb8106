"""An API that knows nothing of idempotency. On stderr it says where it listens, and each time it acts."""
import itertools, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

acts = itertools.count(1)


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        act = next(acts)
        print("acted", self.headers["idempotency-key"], file=sys.stderr, flush=True)
        if self.path == "/hang":
            threading.Event().wait()
        answer = json.dumps({"act": act, "amount": json.loads(body)["amount"]}).encode()
        self.send_response(201)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
print("listens on", server.server_port, file=sys.stderr, flush=True)
server.serve_forever()
