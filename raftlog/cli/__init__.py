"""The `raftlog` command, for people and scripts at a terminal.

Purpose: turn arguments, environment, files and pipes into calls of `raftlog_client` (every command
but `serve`) or into the settings of one node (`serve`), and their outcome into text, JSON and exit
codes.

Rules: data goes to stdout and everything else to stderr. A message names the next step. Memory is
bounded whatever the input's length. A command imports only the libraries in use, so that `raftlog
--help` is quick and an idle node small.

Must not know: the inside of a node, or the requests of the client.
"""
