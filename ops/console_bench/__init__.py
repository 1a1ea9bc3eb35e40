"""Parts of `ops/bench_console.py`."""
