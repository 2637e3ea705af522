"""Topic names: Kafka's rules, so that a topic can be mirrored to and from any such cluster.

A legal name is also a harmless path segment, URL segment and metric label; even so, no path on
disk is ever made of a name, but of the topic's id.
"""

from __future__ import annotations

import re
from typing import Final

from raftlog.record.errors import INVALID_TOPIC, LogError

TOPIC_NAME_CHARACTERS_MAX: Final = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_SHOWN_CHARACTERS_MAX = 80


def topic_name_fault(name: str) -> str | None:
    """What is wrong with a topic name, as a sentence for its author; None if nothing is."""
    if not name:
        return "A topic name must not be empty."
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        return (
            f"A topic name has at most {TOPIC_NAME_CHARACTERS_MAX} characters; "
            f"this one has {len(name)}."
        )
    if name in {".", ".."}:
        return "A topic name must not be '.' or '..'."
    if _LEGAL.fullmatch(name) is None:
        shown = ascii(name[:_SHOWN_CHARACTERS_MAX])[:_SHOWN_CHARACTERS_MAX]
        return (
            f"Topic name {shown} is not valid: only ASCII letters and digits, "
            "'.', '_' and '-' are allowed."
        )
    return None


def check_topic_name(name: str) -> str:
    """The name itself, if it is legal. Raises LogError(INVALID_TOPIC)."""
    fault = topic_name_fault(name)
    if fault is not None:
        raise LogError(INVALID_TOPIC, fault)
    return name
