"""Tests of the examples: their states, and their HTTP side over replicas in this process."""
