"""A request to a loaded shard, which also survives the way between nodes."""

from __future__ import annotations

from typing import Any

from raftlog.coordinator.shard.service import AnyShard


async def carry_out(shard: AnyShard, request: Any) -> Any:
    """Carry out a request as `Coordinators` does. Encoding changes neither it nor the response."""
    messages = shard.kind.messages
    checked = messages.checked(request)
    assert checked is request, "an immutable request within its bounds is not copied"
    assert messages.decode_request(messages.encode_request(request)) == request
    response = await shard.kind.handle(shard, request)
    assert messages.decode_response(messages.encode_response(response)) == response
    return response
