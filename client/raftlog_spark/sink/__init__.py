"""Writers turn rows into record batches by partition, and commit a batch."""
