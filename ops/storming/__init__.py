"""The parts of `ops/drill_storm.py`."""
