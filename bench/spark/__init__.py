"""Measurements of the Spark connector: of its parts (`codec`, `raw`), and of whole queries (bench/parts.py)."""
