"""The parts of `ops/drill_crash.py`."""
