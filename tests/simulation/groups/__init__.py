"""Histories of consumer groups and their offsets on whole nodes."""
