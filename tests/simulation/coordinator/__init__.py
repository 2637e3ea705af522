"""Histories of coordinators on whole nodes."""
