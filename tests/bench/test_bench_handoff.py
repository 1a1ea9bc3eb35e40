"""The bench itself, as a person starts it, with two real vLLM workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT: Final = Path(__file__).resolve().parents[2]
FIELDS: Final = {
    "context",
    "sessions",
    "moves",
    "token_ms_median",
    "pause_ms",
    "frozen_ms",
    "pause_steps_p95",
    "cold_replay_ms",
    "warm_replay_ms",
    "ratio_cold",
    "ratio_warm",
    "reuse",
    "recomputed_tokens",
    "precopied_bytes",
    "frozen_bytes_max",
    "neighbour_step_increase",
    "identical",
}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short path: Unix sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="bh-", dir="/tmp") as folder:
        yield Path(folder)


def command(*options: str) -> list[str]:
    model = os.environ.get("SWAPD_TEST_MODEL")
    given = ["--model", model] if model else []
    return [
        sys.executable,
        "ops/bench_handoff.py",
        "--quick",
        "--contexts",
        "256",
        "--sessions",
        "2",
        *given,
        *options,
    ]


def numbers(value: Any) -> bool:
    return all(isinstance(each, int | float) for each in (value.values() if type(value) is dict else [value]))


def test_a_quick_bench_measures_moves_that_lose_nothing_and_leaves_nothing_behind(
    temporary: Path, tmp_path: Path
) -> None:
    report_path = tmp_path / "handoff.json"
    ended = subprocess.run(
        command("--no-timing-claims", "--json", str(report_path)),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert ended.stdout.splitlines()[-1] == "all 5 claims hold"
    assert list(temporary.iterdir()) == []
    report = json.loads(report_path.read_text())
    assert report_path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert [(cell["context"], cell["sessions"]) for cell in report["cells"]] == [(256, 2)]
    for cell in report["cells"]:
        assert set(cell) >= FIELDS
        assert all(numbers(cell[field]) for field in FIELDS - {"neighbour_step_increase"})
        assert cell["moves"] == 4
        assert cell["identical"] is True
        assert cell["reuse"] == 1.0
        assert cell["recomputed_tokens"] == 0
        assert 0 < cell["frozen_bytes_max"] < cell["precopied_bytes"]
        assert cell["pause_ms"]["p95"] >= cell["pause_ms"]["median"] > 0
        # A warm replay is warm, a cold one cold.
        assert 0 < cell["warm_recomputed_tokens"] < 256 < cell["cold_recomputed_tokens"]
        assert {prompt["temperature"] for prompt in cell["prompts"]} == {0.0, 0.8}
        assert all(prompt["tokens_compared"] > 64 for prompt in cell["prompts"])


def test_an_interrupted_bench_leaves_nothing_behind(temporary: Path) -> None:
    started = subprocess.Popen(
        command(),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    for line in started.stderr:
        if "starting the service" in line:
            break
    children = descendants(started.pid)
    assert len(children) == 3
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=120)
    assert started.returncode == 130
    assert list(temporary.iterdir()) == []
    assert not [pid for pid in children if alive(pid)]


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, once there are three of them."""
    while True:
        found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        if len(found) >= 3:
            return found
        time.sleep(0.05)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
