"""Messages of SaslHandshake, SaslAuthenticate.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int64, Versions


class SaslHandshakeRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1)
    mechanism: str = ""


class SaslHandshakeResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1)
    error_code: Int16 = 0
    mechanisms: tuple[str, ...] = ()


class SaslAuthenticateRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    auth_bytes: bytes = b""


class SaslAuthenticateResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    error_code: Int16 = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: Annotated[Int64, Field(since=1, is_ignorable=True)] = 0
