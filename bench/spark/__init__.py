"""Measurements of the Spark connector: its parts (`codec`, `raw`), and whole queries."""
