"""Retention and compaction: plans, rewrites and runs."""
