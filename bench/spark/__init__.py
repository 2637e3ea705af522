"""Measurements of the Spark connector: of its parts (`codec`, `raw`), and whole (`suite`)."""
