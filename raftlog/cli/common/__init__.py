"""Options, session, output and errors that every command shares."""
