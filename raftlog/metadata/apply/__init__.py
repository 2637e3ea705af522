"""Applies commands to the image, and is the only code that changes metadata."""
