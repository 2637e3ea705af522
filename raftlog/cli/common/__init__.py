"""Parts that every command shares: options, session, output and errors."""
