"""The parts of `ops/drill_leak.py`."""
