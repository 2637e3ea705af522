"""Handlers of the v3 convention below `/v3`."""
