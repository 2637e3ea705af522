"""Scenarios that the project's requirements name, one by one, on real nodes and clients."""
