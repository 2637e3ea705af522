"""Measurements of the Spark connector and of its parts."""
