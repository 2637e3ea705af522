"""A program in the place of `raftlog serve`: settings that nodes share through one file.

    python -m tests.bench.fake_node --data-dir DIR [--listen ADDRESS --node-id N --voters ...]
                                    [--mistake MISTAKE]

For tests of programs that drive clusters. The fake cluster is linearizable and survives every kill,
thanks to the file's lock. The leader is the lowest running voter. With `--mistake stale-reads` some
reads are answered from the past; with `--mistake silent` there is never a leader.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from raftlog.api.cluster import QuorumInfo, QuorumMember

STALE_READ_SHARE = 0.05


class FakeNode:
    """One node of the fake cluster."""

    def __init__(self, data_dir: Path, start: dict[str, Any]) -> None:
        self.shared = data_dir.parent
        self.node_id = int(start["node_id"])
        self.voters: dict[int, str] = {
            int(voter.partition("@")[0]): voter.partition("@")[2]
            for voter in start["voters"].split(",")
        }
        self.mistake = start["mistake"]
        self._alive = (self.shared / f"alive{self.node_id}").open("w")
        fcntl.flock(self._alive, fcntl.LOCK_EX)

    def quorum(self) -> dict[str, Any]:
        alive = [node_id for node_id in sorted(self.voters) if self._is_alive(node_id)]
        leader = None if self.mistake == "silent" else alive[0]
        with self._state() as state:
            term = state.setdefault("term", 1)
            if leader != state.get("leader"):
                state["term"] = term = term + 1
                state["leader"] = leader
        voters = tuple(
            QuorumMember(
                node_id=node_id,
                host=None,
                port=None,
                directory_id=None,
                is_leader=node_id == leader,
                connected=node_id in alive,
                match_index=0,
                lag=0,
                last_heard_ms=0,
            )
            for node_id in self.voters
        )
        quorum = QuorumInfo(
            cluster_id="fake",
            node_id=self.node_id,
            leader_id=leader,
            term=term,
            is_active=leader == self.node_id,
            last_index=0,
            commit_index=0,
            applied_index=0,
            voters=voters,
            observers=(),
        )
        return dict(msgspec.to_builtins(quorum))

    def read(self) -> dict[str, Any]:
        with self._state() as state:
            history = state.get("history", [])
            if self.mistake == "stale-reads" and random.random() < STALE_READ_SHARE:
                history = history[:-5]
            values: dict[str, str] = {}
            for written in history:
                values.update(written)
            return {"index": len(history), "values": values}

    def write(self, values: dict[str, str]) -> dict[str, Any]:
        with self._state() as state:
            state.setdefault("history", []).append(values)
            return {"index": len(state["history"]), "values": values}

    def _is_alive(self, node_id: int) -> bool:
        if node_id == self.node_id:
            return True
        with (self.shared / f"alive{node_id}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        path = self.shared / "state.json"
        with (self.shared / "state.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(path.read_text()) if path.exists() else {}
            yield state
            temporary = self.shared / "state.tmp"
            temporary.write_text(json.dumps(state))
            temporary.replace(path)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    node: ClassVar[FakeNode]

    def do_GET(self) -> None:
        if self.path.startswith("/v1/quorum"):
            self._answer(self.node.quorum())
        elif self.path.startswith("/v1/cluster/settings"):
            self._answer(self.node.read())
        else:
            self._answer({"status": "ready"})

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.node.write(body["values"]))

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        # In one write: two would wait for each other (Nagle's algorithm, delayed acknowledgements).
        self.wfile.write(head.encode() + body)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    for name in ("--listen", "--node-id", "--voters", "--flush", "--mistake"):
        parser.add_argument(name)
    parser.add_argument("--cluster-secret-file")
    given = parser.parse_args()
    remembered = given.data_dir / "directory.json"
    if remembered.exists():
        start = json.loads(remembered.read_text())
    else:
        given.data_dir.mkdir(parents=True)
        start = {
            "node_id": given.node_id,
            "listen": given.listen,
            "voters": given.voters,
            "mistake": given.mistake,
        }
        remembered.write_text(json.dumps(start))
    Handler.node = FakeNode(given.data_dir, start)
    host, _, port = start["listen"].rpartition(":")
    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
