"""Record batches become Arrow arrays and back, vectorised, without a Python step per record."""
