"""Logs of commands are shared by all replicas, or separate per replica."""
