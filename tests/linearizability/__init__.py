"""Was what clients saw possible in one copy of the data, each operation at one moment?

Purpose: histories of operations on registers, and the checker that finds a history impossible.

Rules: the checker knows nothing of the system that was observed, only what its clients saw. It
never calls a history possible because it ran out of room: that is a verdict of its own. Whatever
it says is held against slower and different methods in its own tests.
"""
