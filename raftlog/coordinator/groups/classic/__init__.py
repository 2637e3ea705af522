"""Classic consumer groups: join, sync, heartbeat and leave."""
