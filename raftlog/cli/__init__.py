"""The `raftlog` command: what a person or a script at a terminal meets.

Purpose: turn arguments, environment, files and pipes into calls of `raftlog_client` (every command
but `serve`) or into the settings of one node (`serve`), and their outcome into text, JSON and exit
codes.

Rules: data goes to stdout and everything else to stderr; a message says what to do next; memory is
bounded whatever the input's length; a command that does not need a library does not import it, so
that `raftlog --help` is quick and an idle node small.

Must not know: how a node works inside, or how the client talks to it.
"""
