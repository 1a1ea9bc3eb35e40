"""The parts of `ops/soak.py`."""
