"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run, and no time limit an example: a busy machine is not a failure.
settings.register_profile("swapd", deadline=None, derandomize=True)
settings.load_profile("swapd")
