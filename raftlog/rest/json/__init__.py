"""Records as JSON: requests parsed into batches, batches written as responses."""
