"""Configs of topics and brokers: names, types, bounds and meanings."""
