"""Drills and benches that a signal ends."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.deployment import REPO
from tests.e2e.drills import end_drill

COMMANDS = sorted(
    path.name
    for path in (REPO / "ops").glob("*.py")
    if path.name.startswith(("bench_", "drill_")) or path.stem in ("soak", "gpu_check")
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "number", "status"),
    [
        ("drill_crash.py", signal.SIGTERM, 143),
        ("drill_restart.py", signal.SIGINT, 130),
        ("bench_drain.py", signal.SIGHUP, 129),
    ],
)
def test_a_signal_ends_the_service_and_its_workers_first(
    script: str, number: signal.Signals, status: int
) -> None:
    """Nothing is left in the folder for temporary files, no process, and the status names the signal."""
    assert end_drill(f"ops/{script}", number)[0] == status


@pytest.mark.parametrize("script", COMMANDS)
def test_every_command_ends_so(script: str) -> None:
    """What starts a service is started by the one function that knows how to end it."""
    last = (REPO / "ops" / script).read_text().partition('if __name__ == "__main__":')[2]
    assert "sys.exit(run_command(main))" in last
