"""The parts of `ops/gpu_check.py`."""
