"""The whole of swapd below its doors in one thread, with a clock and wires that a test holds in its hands."""
