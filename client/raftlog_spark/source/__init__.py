"""Readers plan on the driver, and fetch and decode on the executors."""
