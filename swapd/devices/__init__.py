"""Lent devices: what is measured on them, and the process that measures."""
