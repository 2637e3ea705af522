"""Applying a command to the image: the only code that changes metadata."""
