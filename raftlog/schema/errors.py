"""Errors of encoding and decoding."""

from __future__ import annotations


class DecodeError(ValueError):
    """The bytes are not a message of this type and version."""


class EncodeError(ValueError):
    """The version of the message cannot hold a value."""
