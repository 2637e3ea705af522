"""Facts for scripts/demo from the command line's JSON, read from stdin.

leader        the leader of partition 0                  of `raftlog topic describe`
follower      the other one of its two replicas
alone         "yes" once only the leader is in sync
records       the number of records in all partitions
whole         "yes" once every replica is in sync with all records
pid N         the process of node N                      of `raftlog cluster status`
address N     the address of node N
kafka         the addresses for Kafka's clients
"""

from __future__ import annotations

import sys
from typing import Any

import orjson


def is_whole(partition: dict[str, Any]) -> bool:
    followers = partition["followers"]
    return len(partition["isr"]) == len(partition["replicas"]) and all(
        follower["lag"] == 0 for follower in followers
    )


def main(command: str, *arguments: str) -> None:
    document = orjson.loads(sys.stdin.buffer.read())
    match command, arguments:
        case "leader", ():
            print(document["partitions"][0]["leader"])
        case "follower", ():
            print(document["partitions"][0]["followers"][0]["node_id"])
        case "alone", ():
            print("yes" if len(document["partitions"][0]["isr"]) == 1 else "")
        case "records", ():
            print(sum(partition["end_offset"] or 0 for partition in document["partitions"]))
        case "whole", ():
            print("yes" if all(map(is_whole, document["partitions"])) else "")
        case ("pid" | "address") as field, (number,):
            nodes = {str(node["node_id"]): node for node in document["nodes"]}
            print(nodes[number][field] or "")
        case "kafka", ():
            print(",".join(node["kafka"] for node in document["nodes"] if node["kafka"]))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
