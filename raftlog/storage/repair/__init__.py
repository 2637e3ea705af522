"""Scrub, quarantine, and repair of damaged batches from good copies."""
