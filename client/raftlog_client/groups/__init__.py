"""Group membership of a consumer, with lease, member, offsets and rebalances."""
