"""Producer state: sequence numbers and epochs, per producer id."""
