"""Checkpoints that swapd can make by itself from what a package ships."""
