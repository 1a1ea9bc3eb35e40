"""The parts of `ops/bench_handoff.py`: plan, deployment, rounds, control run, figures, report."""
