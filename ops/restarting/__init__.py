"""The parts of `ops/drill_restart.py`."""
