"""Names, types, bounds and meanings of topic and broker configs."""
