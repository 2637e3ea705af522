"""Damage: scrub, quarantine, and repair of batches from good copies."""
