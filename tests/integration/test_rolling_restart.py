"""A rolling restart costs clients of several nodes nothing, without a repeated request."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection, HTTPException

from bench.cluster import Cluster
from tests.processes import make_whole

CLIENTS = 8
PARTITIONS = 12
PAUSE_S = 0.005
"""Between two requests of a client, as of programs that do something else too."""
V2_JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


class Client(threading.Thread):
    """Produces one record after the other on kept connections, and repeats no request."""

    def __init__(self, number: int, addresses: list[str], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.outcomes: Counter[str] = Counter()
        self._at = number
        self._addresses = addresses
        self._stop_event = stop

    def run(self) -> None:
        """Use the next node when a node refuses a connection, or ends it with its response."""
        while not self._stop_event.is_set():
            connection = HTTPConnection(
                self._addresses[self._at % len(self._addresses)], timeout=60
            )
            with suppress(OSError):
                connection.connect()
            if connection.sock is not None:
                self._produce(connection)
            connection.close()
            self._at += 1

    def _produce(self, connection: HTTPConnection) -> None:
        body = json.dumps({"records": [{"key": f"{self._at}", "value": 1}]})
        while not self._stop_event.is_set():
            try:
                connection.request("POST", "/topics/rolled", body, V2_JSON)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, HTTPException) as error:
                self.outcomes[repr(error)] += 1
                return
            is_written = answer.status == 200 and json.loads(text)["offsets"][0]["error"] is None
            self.outcomes["written" if is_written else f"{answer.status} {text!r}"] += 1
            if answer.getheader("Connection") == "close":
                return
            time.sleep(PAUSE_S)


def test_a_rolling_restart_costs_no_request(cluster: Cluster) -> None:
    cluster.nodes[1].create_topic("rolled", PARTITIONS)
    make_whole(cluster)
    stop = threading.Event()
    addresses = [node.address for node in cluster.nodes.values()]
    clients = [Client(number, addresses, stop) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        for node in cluster.nodes.values():
            node.stop()
            node.relaunch()
            make_whole(cluster)
    finally:
        stop.set()
        for client in clients:
            client.join()
    outcomes = sum((client.outcomes for client in clients), Counter())
    assert list(outcomes) == ["written"], outcomes
