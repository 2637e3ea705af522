"""A refusal by the broker's authorizer reaches the client as its typed error."""

from __future__ import annotations

import pytest

from raftlog.broker.authorize import ANONYMOUS, Operation, Principal, Resource
from raftlog.record.errors import FORBIDDEN, UNAUTHORIZED, ErrorEntry, LogError
from tests.broker.data_fakes import DataNode
from tests.rest.data_fakes import serving


@pytest.mark.parametrize("entry", [FORBIDDEN, UNAUTHORIZED])
async def test_refused_request_is_answered_with_the_authorizers_error(entry: ErrorEntry) -> None:
    seen: list[tuple[Operation, str]] = []

    def authorize(principal: Principal, operation: Operation, resource: Resource) -> None:
        assert principal == ANONYMOUS
        seen.append((operation, resource.name))
        if resource.name == "yours":
            raise LogError(entry, "Not yours.")

    node = DataNode()
    for name in ("mine", "yours"):
        await node.metadata.create_topic(name)
    body = b'{"records":[{"value":1}]}'
    async with serving(node, authorize=authorize) as one:
        assert (await one.peer.request("POST", "/topics/mine", body)).status == 200
        for method, path, content in (
            ("POST", "/topics/yours", body),
            ("POST", "/topics/yours/partitions/0", body),
            ("GET", "/topics/yours/partitions/0/records", b""),
            ("GET", "/topics/yours", b""),
            ("GET", "/v1/topics/yours/tail", b""),
            ("POST", "/v1/offsets", b'{"topics":["yours"]}'),
            ("DELETE", "/v3/clusters/-/topics/yours", b""),
        ):
            reply = await one.peer.request(method, path, content)
            assert (reply.error_code, reply.json["message"]) == (entry.code, "Not yours."), path
        assert one.node.replicas.here("yours", 0).log_end_offset == 0
        assert "yours" in node.metadata.image.topics_by_name
    assert seen == [
        (Operation.WRITE, "mine"),
        (Operation.WRITE, "yours"),
        (Operation.WRITE, "yours"),
        (Operation.READ, "yours"),
        (Operation.DESCRIBE, "yours"),
        (Operation.READ, "yours"),
        (Operation.DESCRIBE, "yours"),
        (Operation.DELETE, "yours"),
    ]
