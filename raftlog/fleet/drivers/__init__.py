"""Drivers: processes of this machine, and hosts reached by ssh."""
