"""`python -m raftlog.cli` is the `raftlog` command, where no script is on the path."""

from raftlog.cli.main import main

main()
