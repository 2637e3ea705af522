"""Writing topics: rows to record batches, partition by partition, and the commit of a batch."""
