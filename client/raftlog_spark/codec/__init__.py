"""Record batches to Arrow and back: vectorised, no Python step per record."""
