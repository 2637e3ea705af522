"""Group membership of a consumer: lease, member, offsets and rebalances."""
