"""Plans, rewrites and runs of retention and compaction."""
