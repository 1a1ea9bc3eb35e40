"""Adapters to inference engines. Only `swapd.worker` imports them."""
