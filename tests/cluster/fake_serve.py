"""A process with the command line and the answers of `raftlog serve`, and no more.

Files in its data directory set its behaviour: `die` (log, and exit with 9), `busy` (answer
"not ready"). Node 2 is the controller.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CONTROLLER = 2
QUORUM = {
    "cluster_id": "c",
    "term": 1,
    "last_index": 0,
    "commit_index": 0,
    "applied_index": 0,
    "voters": [],
    "observers": [],
}


def main(arguments: list[str]) -> None:
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    directory = Path(given["--data-dir"])
    directory.mkdir(exist_ok=True)
    if (directory / "die").exists():
        sys.exit("I was told to die")
    identity = directory / "directory.json"
    if identity.exists():
        assert "--voters" not in given and "--join" not in given, "it has begun already"
        given = {**json.loads(identity.read_text()), **given}
    identity.write_text(json.dumps(given))
    node_id = int(given["--node-id"])
    host, port = given["--listen"].rsplit(":", 1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/ready":
                busy = (directory / "busy").exists()
                self._answer(
                    503 if busy else 200,
                    {"error_code": 50304, "message": "I am busy." if busy else ""},
                )
            else:
                active = node_id == CONTROLLER
                view = {"node_id": node_id, "leader_id": CONTROLLER, "is_active": active}
                self._answer(200, QUORUM | view)

        def _answer(self, status: int, document: Any) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
