"""Running a drill as a command, so that nothing of it stays, also when a test is broken off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from tests.e2e.deployment import REPO, processes_of

START_S = 120.0
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


def end_drill(script: str, number: int, *options: str) -> tuple[int, str]:
    """Exit status, and all that was said, of a drill that gets a signal once its service runs.

    Nothing of it may be left then.
    """
    with tempfile.TemporaryDirectory(prefix="swapd-drill-") as private, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, script, *options],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=REPO,
            env={**os.environ, "TMPDIR": private},
        )
        try:
            deadline = time.monotonic() + START_S
            while not list(Path(private).glob("*/s/*.ready.json")):
                assert process.poll() is None, _text(said)
                assert time.monotonic() < deadline, _text(said)
                time.sleep(0.05)
            process.send_signal(number)
            status = process.wait(STOP_S)
            left = processes_of(Path(private))
            assert not left, f"{script} left processes behind: {left}"
            assert not list(Path(private).iterdir()), _text(said)
        finally:
            _break_off(process, Path(private))
        return status, _text(said)


def _text(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode()


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
