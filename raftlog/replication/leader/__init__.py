"""The leader role of a partition: appends, high watermark, in-sync replicas."""
