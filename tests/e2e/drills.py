"""Running a drill as a command, so that nothing of it stays, also when a test is broken off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.deployment import REPO, processes_of

STOP_S = 60.0


def run_drill(script: str, folder: Path, *options: str) -> tuple[int, str, Any]:
    """Exit status, all that was said, and the report, which alone may be left in `folder`."""
    report = folder / "report.json"
    process = subprocess.Popen(
        [sys.executable, script, "--json", str(report), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=REPO,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        said = process.communicate()[0].decode()
    except BaseException:
        # The drill itself knows best how to end the service that it has started.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_S)
        process.kill()
        process.wait()
        # All that it had started lies in the folder, and is named by it: a service is a session of its own.
        for pid in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    assert not (left := processes_of(folder)), f"{script} left processes behind: {left}"
    assert [path.name for path in folder.iterdir()] == [report.name], said
    return process.returncode, said, json.loads(report.read_bytes())
