"""The log of a member in memory, in the journal, and on disk."""
