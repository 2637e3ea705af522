"""Requests of the replicated state's benchmark."""

from __future__ import annotations

import json
from base64 import b64decode

from bench.state import etcd


def test_a_request_to_etcd_is_whole() -> None:
    head, _, body = etcd.put_request(2379, "key", b"value").partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    fields = json.loads(body)
    assert (b64decode(fields["key"]), b64decode(fields["value"])) == (b"key", b"value")
