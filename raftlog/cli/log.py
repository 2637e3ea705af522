"""The node's log: lines on stderr, for a person or, as JSON, for a collector."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import msgspec
import orjson

from raftlog.cli.options import iso_time


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the node writes to stderr, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important messages that are written."""
    format: Literal["text", "json"] = "text"
    """json: one object per line, with time, level, logger and message."""


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO raftlog.node: message`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with its traceback below it if it has one."""
        # UTC, because logs of several machines are read together.
        time = iso_time(int(record.created * 1000))
        line = f"{time} {record.levelname} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per message."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        document: dict[str, Any] = {
            "time": iso_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


def configure_log(settings: LogSettings) -> None:
    """Send all messages of this process to stderr as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
