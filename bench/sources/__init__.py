"""`scripts/bench sources`: the claims of the articles that raftlog began with, measured.

docs/sources.md lists the claims.
"""
