"""Hostile inputs, made from a seeded random generator. Pure."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog.record.batch import sealed
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression, compress
from raftlog.record.frames import BATCHES_MEDIA_TYPE, ProduceFrame
from raftlog.record.header import HEADER_SIZE, LENGTH_END, parse_header
from raftlog.record.types import PartitionId, ProducerEpoch, ProducerId
from tests.record.wire import encode_produce_frames

MIB: Final = 1 << 20
TOPIC: Final = "attacked"
JSON_TYPE: Final = "application/json"
DISRUPTIVE: Final = ("/quorum/transfer", "/cluster/settings", "/broker-configs", "/configs:alter")
"""Parts of paths by which an operator may stop a cluster: without users, everybody is one."""
PARTITIONS: Final = (0, 1)
"""Of the attacked topic."""
_JSON_HEADERS: Final = {"Content-Type": JSON_TYPE}
_BATCH_HEADERS: Final = {"Content-Type": BATCHES_MEDIA_TYPE}
VALUES: Final[Mapping[str | None, Sequence[Any]]] = {
    "integer": [0, 1, 2, 3, -1, 2**31 - 1, 2**63 - 1, 10**25],
    "number": [0, 0.5, -1.5, 1e300],
    "boolean": [True, False],
    "string": ["", "x", TOPIC, "bmV3", "a" * 300, "\ud800", "\0", "ünï"],
    None: [None, 1, "x", {}],
}
"""Values by type of JSON schema: good ones, and ones at or over a bound."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, not necessarily a sound one."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self) -> bytes:
        """Request line and headers."""
        lines = {"Host": "127.0.0.1", "Content-Length": str(len(self.body)), **self.headers}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{self.method} {self.path} HTTP/1.1\r\n{text}\r\n".encode(
            "utf-8", "surrogateescape"
        )


def nested(depth: int) -> Iterator[bytes]:
    """Deep JSON texts, and wide ones with as many brackets."""
    yield b"[" * depth
    yield b"[" * depth + b"]" * depth
    yield b'{"a":' * depth + b"1" + b"}" * depth
    yield b'{"records":[{"value":' + b"[" * depth + b"]" * depth + b"}]}"
    yield b'{"records":[{"value":"' + b'\\"[' * depth + b'"}]}'
    yield b"[" + b"[]," * depth + b"[]]"
    yield b'"' + b"\\" * depth
    yield b"1" * depth
    yield b'{"records":[' + b'{"value":1},' * (depth // 8) + b'{"value":1}]}'


def json_bombs(size: int) -> Iterator[Request]:
    """Bodies of `size` bytes of JSON, plain and compressed to almost nothing."""
    for text in nested(size):
        body = text[:size]
        for path in (f"/topics/{TOPIC}", f"/v3/clusters/-/topics/{TOPIC}/records", "/v1/offsets"):
            yield Request("POST", path, body, {"Content-Type": JSON_TYPE})
            yield Request(
                "POST",
                path,
                gzip.compress(body, 9),
                {"Content-Type": JSON_TYPE, "Content-Encoding": "gzip"},
            )


def gzip_bombs() -> Iterator[Request]:
    """Bodies inflating beyond every bound."""
    zeros = gzip.compress(bytes(128 * MIB), 1)
    for content_type in (
        JSON_TYPE,
        BATCHES_MEDIA_TYPE,
        "application/vnd.kafka.json.v2+json",
    ):
        for path in (f"/topics/{TOPIC}", "/v1/produce", "/v1/fetch"):
            headers = {"Content-Type": content_type, "Content-Encoding": "gzip"}
            yield Request("POST", path, zeros, headers)
            yield Request("POST", path, gzip.compress(zeros, 9), headers)


def batch_bomb(compression: Compression, size: int, record_bytes: int) -> bytes:
    """A sound batch of zeros: `size` bytes in records, a thousandth of it in transit."""
    builder = BatchBuilder(compression, 512 * MIB)
    for _ in range(size // record_bytes):
        builder.append(None, None, bytes(record_bytes), [])
    return bytes(builder.build())


def lying_batch(compression: Compression, inflated: int) -> bytes:
    """A batch with a correct CRC and zeros instead of compressed records."""
    builder = BatchBuilder()
    builder.append(None, None, b"x", [])
    plain = bytes(builder.build())
    header = parse_header(plain)
    data = bytearray(HEADER_SIZE) + compress(compression, memoryview(bytes(inflated)))
    sealed(
        data,
        header._replace(
            attributes=header.attributes | compression, batch_length=len(data) - LENGTH_END
        ),
    )
    return bytes(data)


def batch_bombs() -> Iterator[Request]:
    """Inflating record batches of every codec."""
    for codec in Compression:
        if codec is Compression.NONE:
            continue
        for data in (
            batch_bomb(codec, 8 * MIB, 1000),
            batch_bomb(codec, MIB // 8, 1),
            lying_batch(codec, 64 * MIB),
        ):
            for partition in PARTITIONS:
                yield produce(data, partition)


def batch_reads() -> Sequence[Request]:
    """Reads of the batches of `batch_bombs`, as large as may be."""
    return [
        Request(
            "GET",
            f"/topics/{TOPIC}/partitions/{partition}/records?offset=0&max_bytes={32 * MIB}",
            headers={"Accept": "application/vnd.kafka.binary.v2+json"},
        )
        for partition in PARTITIONS
    ]


def header_floods() -> Iterator[Request]:
    """Heads with many headers, long ones, and much of both."""
    for count in (50, 95, 101, 2_000):
        yield Request("GET", "/topics", b"", {f"X-{number}": "y" for number in range(count)})
    for size in (8_000, 9_000, 60_000):
        yield Request("GET", "/topics", b"", {"X-Long": "y" * size})
    for count in (3, 5, 90):
        yield Request(
            "GET", "/topics", b"", {f"X-{number}": "y" * 8_000 for number in range(count)}
        )
    yield Request("GET", "/topics?" + "&".join(f"a{number}=" for number in range(1_000)))
    yield Request("GET", "/topics/" + "%41" * 2_600)


def many_partitions() -> Iterator[Request]:
    """Bodies of /v1 with 10,000 and more names, existing and not; each topic once, or one often."""
    for count in (9_999, 20_000):
        lone = [{"topic": f"none-{one}", "partition": 0, "offset": 0} for one in range(count)]
        same = [{"topic": TOPIC, "partition": one % 2, "offset": 0} for one in range(count)]
        for partitions in (lone, same):
            fetch = {"partitions": partitions, "max_wait_ms": 0}
            yield Request("POST", "/v1/fetch", json.dumps(fetch).encode(), _JSON_HEADERS)
        for topics in (
            [f"none-{one}" for one in range(count)],
            [TOPIC] * count,
            {TOPIC: [one % 2 for one in range(count)]},
            {f"none-{one}": [0] for one in range(count)},
        ):
            offsets = {"topics": topics, "any_node": True}
            yield Request("POST", "/v1/offsets", json.dumps(offsets).encode(), _JSON_HEADERS)
        frames = [
            ProduceFrame(f"none-{one}", PartitionId(0), _small_batch()) for one in range(count)
        ]
        yield Request("POST", "/v1/produce", encode_produce_frames(frames), _BATCH_HEADERS)
    frames = [ProduceFrame(TOPIC, PartitionId(one % 2), _small_batch()) for one in range(2_000)]
    yield Request("POST", "/v1/produce", encode_produce_frames(frames), _BATCH_HEADERS)


def _small_batch() -> bytes:
    builder = BatchBuilder()
    builder.append(None, None, b"x", [])
    return bytes(builder.build())


def stranger_batch(rng: random.Random) -> Request:
    """A batch by a made-up producer id, which is the first of that producer."""
    data = bytearray(_small_batch())
    header = parse_header(bytes(data))
    sealed(
        data,
        header._replace(
            producer_id=ProducerId(rng.randrange(2**62)),
            producer_epoch=ProducerEpoch(0),
            base_sequence=0,
        ),
    )
    return produce(bytes(data), rng.choice(PARTITIONS))


def foreign_requests() -> Sequence[Request]:
    """Requests by pages of other origins (403) and by names that are not the node's (421)."""
    post = b'{"records":[{"value":1}]}'
    found = []
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "SAME-SITE"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "localhost.evil.example"},
        {"Host": "0x7f.1"},
        {"Host": ""},
    ):
        found.append(Request("GET", "/topics", b"", headers))
        found.append(Request("POST", f"/topics/{TOPIC}", post, {**_JSON_HEADERS, **headers}))
        found.append(
            Request("POST", f"/topics/{TOPIC}", post, {"Content-Type": "text/plain", **headers})
        )
        found.append(Request("DELETE", f"/v3/clusters/-/topics/{TOPIC}", b"", headers))
        found.append(Request("OPTIONS", f"/topics/{TOPIC}", b"", headers))
    return found


def produce(data: bytes, partition: int = 0) -> Request:
    """A produce request of raw batches."""
    frame = ProduceFrame(TOPIC, PartitionId(partition), data)
    return Request(
        "POST",
        "/v1/produce?acks=all",
        encode_produce_frames([frame]),
        _BATCH_HEADERS,
    )


class Mutator:
    """Valid requests of every route of an OpenAPI document, and small changes of these."""

    def __init__(self, document: Mapping[str, Any], rng: random.Random) -> None:
        self._rng = rng
        self._schemas = document.get("components", {}).get("schemas", {})
        self._operations = [
            (method.upper(), path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if method == "get" or not any(part in path for part in DISRUPTIVE)
        ]

    def request(self) -> Request:
        """A request of any route, mutated or not."""
        method, path, operation = self._rng.choice(self._operations)
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                value = self._path_value(parameter)
                path = path.replace("{" + parameter["name"] + "}", value)
        query = [
            f"{parameter['name']}={self._scalar(parameter.get('schema', {}))}"
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query" and self._rng.random() < 0.5
        ]
        if query:
            path += "?" + "&".join(query)
        body, headers = b"", {}
        content = operation.get("requestBody", {}).get("content", {})
        if content:
            kind = self._rng.choice(list(content))
            headers["Content-Type"] = kind
            body = json.dumps(self._value(content[kind].get("schema", {}), 0)).encode()
        return self._mutated(Request(method, path, body, headers))

    def _path_value(self, parameter: Mapping[str, Any]) -> str:
        known = {"cluster": "-", "topic": TOPIC, "partition": "0", "broker": "1", "node": "7"}
        value = known.get(parameter["name"], "x")
        if parameter["name"] == "node":
            return value
        return value if self._rng.random() < 0.8 else self._scalar(parameter.get("schema", {}))

    def _scalar(self, schema: Mapping[str, Any]) -> str:
        rng = self._rng
        if rng.random() < 0.5 and schema.get("type") == "integer":
            return str(rng.choice([0, 1, -1, 7, 2**31, 2**63, 2**64, 10**30]))
        words = [
            "",
            "x",
            "-1",
            "NaN",
            "1e9",
            "%00",
            "%ff",
            "..%2f",
            "a" * 300,
            "true",
            "%F0%9F%98%80",
        ]
        return rng.choice(words)

    def _value(self, schema: Mapping[str, Any], depth: int) -> Any:
        rng = self._rng
        if depth > 6 or rng.random() < 0.03:
            return rng.choice([None, True, -1, 1.5, "x", [], {}, 2**63, [[1]], {"a": None}])
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[-1]
            return self._value(self._schemas.get(name, {}), depth + 1)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._value(rng.choice(schema[union]), depth + 1)
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            items = schema.get("items", {})
            return [self._value(items, depth + 1) for _ in range(rng.choice([0, 1, 1, 2, 20]))]
        return rng.choice(schema.get("enum") or VALUES.get(kind, VALUES[None]))

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        found = {
            name: self._value(inner, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or self._rng.random() < 0.4
        }
        if self._rng.random() < 0.05:
            found["unexpected"] = 1
        return found

    def _mutated(self, request: Request) -> Request:
        rng = self._rng
        body, headers, path = request.body, dict(request.headers), request.path
        match rng.randrange(12):
            case 0:
                body = body[: rng.randrange(len(body) + 1)]
            case 1 if body:
                position = rng.randrange(len(body))
                body = body[:position] + rng.randbytes(1) + body[position + 1 :]
            case 2:
                headers["Content-Type"] = rng.choice(
                    ["", "text/plain", "x/y; charset=utf-16", "*/*"]
                )
            case 3:
                headers["Accept"] = rng.choice(["", "image/png", "*/*;q=0", "application/json;q=x"])
            case 4:
                headers["Content-Encoding"] = rng.choice(["gzip", "br", "identity", "gzip, gzip"])
            case 5:
                path = path[: rng.randrange(1, len(path) + 1)]
            case 6:
                body = rng.randbytes(rng.randrange(200))
        return Request(request.method, path, body, headers)


def garbage(rng: random.Random) -> bytes:
    """Bytes unlike an HTTP request, or nearly one."""
    whole = Request("GET", "/topics", b"", {"X": "y"}).head()
    kinds: Sequence[Callable[[], bytes]] = (
        lambda: rng.randbytes(rng.randrange(1, 4000)),
        lambda: b"\x16\x03\x01" + rng.randbytes(300),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(60),
        lambda: b"GET " + b"a" * rng.choice([10, 9_000, 70_000]) + b" HTTP/1.1\r\n\r\n",
        lambda: b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * rng.choice([1, 99, 5_000]) + b"\r\n",
        lambda: (
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        lambda: (
            b"POST /topics/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"%x\r\n" % rng.choice([1, 2**31, 2**63])
            + rng.randbytes(20)
        ),
        lambda: (
            whole[: rng.randrange(len(whole))]
            + rng.randbytes(3)
            + whole[rng.randrange(len(whole)) :]
        ),
    )
    return rng.choice(kinds)()


def opening(rng: random.Random, channel: str) -> bytes:
    """The opening of a node's connection by a stranger to the secret."""
    nonce = "A" * 43 + "="
    return Request(
        "GET",
        f"/v1/internal/{channel}",
        b"",
        {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": f"raftlog.node.{rng.choice([1, 1, 2, 9])}",
            "Raftlog-Nonce": nonce if rng.random() < 0.5 else rng.choice(["", "x", nonce * 50]),
            "Raftlog-Proof": nonce,
        },
    ).head()
