"""The table of APIs."""

from __future__ import annotations

import pytest

from raftlog.kafka.apis import APIS, Api
from raftlog.schema.codec import ELEMENTS_MAX, codec_of


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_bytes_after_a_request_are_ignored(api: Api) -> None:
    request = api.request_type()
    for version in range(api.first, api.last + 1):
        data = codec_of(api.request_type, version).encode(request) + b"zz"
        decoded, end = api.request_decoder(version)(data, 0, ELEMENTS_MAX)
        assert (decoded, data[end:]) == (request, b"zz")
