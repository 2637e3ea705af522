"""The claims of the texts that raftlog began with, a module for each text (docs/sources.md)."""
