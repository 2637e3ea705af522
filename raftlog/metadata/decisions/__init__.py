"""Decisions of the active controller, from the image to commands."""
