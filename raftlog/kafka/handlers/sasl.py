"""SASL is refused by its own error, which names the reason. A closed connection names none."""

from __future__ import annotations

from typing import Final

from raftlog.kafka.call import Call
from raftlog.kafka.messages import sasl as messages

ILLEGAL_SASL_STATE: Final = 34


async def handshake(
    _call: Call, _request: messages.SaslHandshakeRequest
) -> messages.SaslHandshakeResponse:
    """17. Refuses any mechanism."""
    return messages.SaslHandshakeResponse(ILLEGAL_SASL_STATE)


async def authenticate(
    _call: Call, _request: messages.SaslAuthenticateRequest
) -> messages.SaslAuthenticateResponse:
    """36. Refuses any credentials, unread."""
    return messages.SaslAuthenticateResponse(
        ILLEGAL_SASL_STATE, "This listener has no SASL: use security.protocol=PLAINTEXT."
    )
