"""Running a drill as a command, so that nothing of it stays, also when a test is broken off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.e2e.deployment import REPO, processes_of

STOP_S = 60.0


def run_drill(script: str, folder: Path, *options: str) -> tuple[int, str, Any]:
    """Exit status, all that was said, and the report, which comes to `folder`; nothing else may be left."""
    report = folder / "report.json"
    # A folder of its own for all that it makes: pytest's paths are too long for sockets.
    with tempfile.TemporaryDirectory(prefix="swapd-drill-") as private:
        process = subprocess.Popen(
            [sys.executable, script, "--json", str(report), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=REPO,
            env={**os.environ, "TMPDIR": private},
        )
        try:
            said = process.communicate()[0].decode()
        except BaseException:
            _break_off(process, Path(private))
            raise
        assert not (left := processes_of(Path(private))), f"{script} left processes behind: {left}"
        assert not list(Path(private).iterdir()), said
    return process.returncode, said, json.loads(report.read_bytes())


def _break_off(process: subprocess.Popen[bytes], private: Path) -> None:
    """The drill itself knows best how to end the service that it has started; then whatever is left."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=STOP_S)
    process.kill()
    process.wait()
    # All that it had started lies in its folder, and is named by it: a service is a session of its own.
    for pid in processes_of(private):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
