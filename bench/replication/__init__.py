"""What replication delivers: `scripts/bench cluster`, three real nodes on this machine.

Every figure is taken from outside, as a user sees it: by clients, by the nodes' HTTP interface, and
by what the operating system says of their processes. Whatever is started is ended, and every wait
has a deadline.
"""
