"""The figures of replication: `scripts/bench cluster`, three real nodes on this machine.

Every figure is taken from outside, as a user sees the cluster: by clients, by the nodes' HTTP
interface, and by the operating system's view of the processes. Every process is ended, and every
wait has a deadline.
"""
