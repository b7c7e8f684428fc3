"""An engine as small as can be, for the shim's tests: HTTP on loopback, with a key, and files that make it misbehave.

    small_engine.py HOST PORT KEY '{"sick": FILE, "gone": FILE, "names": "a,b", "after": FILE, "asked": FILE, "posts": "500"}'

sick: while this file exists /health answers 503. gone: each client that left a stream is noted here.
after: nothing is bound before this file exists. asked: each request is noted here. posts: what every POST is answered.
/stream ticks for ever, /big/N sends N bytes, /echo sends back, /die exits.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST, PORT, KEY, FLAGS = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.note()
        if self.path == "/health":
            sick = "sick" in FLAGS and Path(FLAGS["sick"]).exists()
            self.answer(503 if sick else 200, b"")
        elif self.headers.get("Authorization") != f"Bearer {KEY}":
            self.answer(401, b"")
        elif self.path == "/v1/models":
            names = FLAGS.get("names", "m").split(",")
            self.answer(200, json.dumps({"data": [{"id": name} for name in names]}).encode())
        elif self.path == "/stream":
            self.stream()
        elif self.path.startswith("/big/"):
            self.answer(200, b"x" * int(self.path[5:]))
        elif self.path == "/die":
            os.write(1, b"fatal: asked to die\n")
            os._exit(0)
        else:
            self.answer(404, b"")

    def do_POST(self) -> None:
        self.note()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/early":          # answers and closes without reading the rest
            self.close_connection = True
        self.answer(int(FLAGS.get("posts", "200")), body if self.path == "/echo" else b"{}")

    def note(self) -> None:
        if "asked" in FLAGS:
            with open(FLAGS["asked"], "a", encoding="ascii") as file:
                file.write(f"{self.command} {self.path}\n")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"4\r\ntick\r\n")
                time.sleep(0.02)
        except OSError:
            with open(FLAGS["gone"], "a", encoding="ascii") as file:
                file.write("gone\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    os.write(1, b"loading weights\n")
    while "after" in FLAGS and not Path(FLAGS["after"]).exists():
        time.sleep(0.01)
    ThreadingHTTPServer((HOST, PORT), Handler).serve_forever()
