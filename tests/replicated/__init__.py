"""Tests of raftlog_replicated."""
