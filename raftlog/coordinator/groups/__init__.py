"""Consumer groups and their committed offsets. All decisions are pure."""
