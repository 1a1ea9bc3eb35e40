"""Sessions that wait in host memory for room on a worker: memory, files, and the side of a move (B3)."""
