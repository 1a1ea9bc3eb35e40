"""The life of a worker process: one ready line, one of each id, nothing left behind by any end."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import msgspec
import pytest
import trio

from swapd.config import TimerConfig
from swapd.errors import Code, SwapdError
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.worker.settings import load_settings
from tests.worker.client import FAST, SIM, connect, left_behind, spec, worker

GRACE_S = 2.5
"""How long a worker waits for a coordinator; a test that is slower to connect would find none."""


def test_one_ready_line_and_the_same_in_a_private_file(folder: Path) -> None:
    """H101, B31, H107: one line on stdout, then nothing; the file and the sockets are the user's alone."""
    with worker(folder) as started:
        ready = started.ready
        assert (ready.worker, ready.pid) == ("a", started.process.pid)
        assert ready.control == f"ipc://{folder}/a.sock"
        assert ready.info.usable_blocks == SIM.blocks
        assert (folder / "a.ready.json").read_bytes() == started.line
        for name in ("a.ready.json", "a.sock", "a.arena.sock"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        started.process.send_signal(signal.SIGTERM)
        code, rest, _ = started.wait()
    assert (code, rest) == (0, b"")
    assert left_behind(folder) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_nothing_kept(folder: Path, number: signal.Signals) -> None:
    """H115: in the middle of decoding, too."""
    given = spec(new=900)
    with worker(folder) as started:
        async with connect(started.ready) as client:
            await client.ask(into.Start(given, 1, 900), out.Started)
            await client.has(given, 1, 3)
            started.process.send_signal(number)
            code, _, errors = started.wait()
    assert code == 0, errors
    assert left_behind(folder) == []
    assert "Traceback" not in errors


def test_sigkill_leaves_nothing_that_blocks_the_next_start(folder: Path) -> None:
    """H115, H102: the next start takes the id over, under a new incarnation."""
    with worker(folder) as first:
        os.kill(first.process.pid, signal.SIGKILL)
        first.wait()
        with worker(folder) as second:
            assert second.ready.incarnation != first.ready.incarnation
            assert second.ready.incarnation.startswith("inc_")
    assert left_behind(folder) == []


async def test_a_second_worker_under_one_id_is_refused(folder: Path) -> None:
    """H106: and the first goes on, undisturbed."""
    with worker(folder) as first:
        with worker(folder) as second:
            code, _, errors = second.wait()
            assert second.line == b""
        assert code == 2
        assert errors.startswith(Code.WORKER_LOCK_HELD)
        async with connect(first.ready) as client:
            await client.ask(into.InventoryQuery(), out.Inventory)
        with worker(folder, "b") as other:
            assert other.ready.worker == "b"


def test_a_socket_path_over_the_limit_is_refused_before_anything_is_made(folder: Path) -> None:
    """H105: also where only the arena's socket would be too long."""
    for length in (107 - len("/a.arena.sock") + 1, 200):
        long = Path(str(folder).ljust(length, "x"))
        with worker(folder, socket_dir=str(long)) as started:
            code, _, errors = started.wait()
        assert code == 2
        assert errors.startswith(Code.SOCKET_PATH_TOO_LONG)
        assert not long.exists()
    fits = Path(str(folder).ljust(107 - len("/a.arena.sock"), "x"))
    with worker(folder, socket_dir=str(fits)) as started:
        assert started.ready.worker == "a"


def test_a_directory_that_others_may_enter_is_refused(folder: Path) -> None:
    """H107."""
    folder.mkdir(mode=0o755)
    with worker(folder) as started:
        code, _, errors = started.wait()
    assert (code, errors.startswith(Code.CONFIG_INVALID)) == (2, True)


async def test_a_worker_without_a_coordinator_ends_cleanly(folder: Path) -> None:
    """Decision 3: frozen and prepared state, too, is only given up with the whole process."""
    timers = TimerConfig(heartbeat_s=0.05, orphan_grace_s=GRACE_S)
    with worker(folder, timers=timers) as started:
        async with connect(started.ready) as client:
            await client.ask(into.Start(spec(new=900), 1, 900), out.Started)
        code, _, errors = started.wait()
    assert code == 0, errors
    assert left_behind(folder) == []


async def test_a_coordinator_that_has_nothing_to_say_keeps_a_worker_alive(folder: Path) -> None:
    timers = TimerConfig(heartbeat_s=0.05, orphan_grace_s=GRACE_S)
    with worker(folder, timers=timers) as started:
        async with connect(started.ready) as client:
            longer_than_the_grace = trio.current_time() + 1.5 * GRACE_S
            while trio.current_time() < longer_than_the_grace:
                await client.send(into.Credit(()))
                await trio.sleep(0.1)
            assert started.process.poll() is None


async def test_an_old_coordinator_does_not_keep_a_worker_alive(folder: Path) -> None:
    timers = TimerConfig(heartbeat_s=0.05, orphan_grace_s=GRACE_S)
    with worker(folder, timers=timers) as started:
        async with connect(started.ready) as old:
            async with connect(started.ready):
                pass
            while started.process.poll() is None:
                await old.send(into.Credit(()))
                await trio.sleep(0.02)
        assert started.wait()[0] == 0


async def test_stop_ends_it_with_zero(folder: Path) -> None:
    with worker(folder) as started:
        async with connect(started.ready) as client:
            await client.ask(into.Stop(), out.Done)
        assert started.wait()[0] == 0
    assert left_behind(folder) == []


def test_an_engine_that_cannot_be_opened_is_a_refusal_without_a_ready_line(folder: Path) -> None:
    bad = msgspec.structs.replace(SIM, block_bytes=1)
    with worker(folder, sim=bad) as started:
        code, rest, errors = started.wait()
    assert (code, started.line, rest) == (2, b"", b"")
    assert Code.CONFIG_INVALID in errors
    assert left_behind(folder) == []


async def test_an_engine_that_fails_raises_an_alarm_and_ends_the_process(folder: Path) -> None:
    with worker(folder, fault="step") as started:
        async with connect(started.ready) as client:
            await client.ask(into.Start(spec(), 1, 8), out.Started)
            await client.until(lambda: [r for r in client.reports if isinstance(r, out.Alarm)])
            [alarm] = [r for r in client.reports if isinstance(r, out.Alarm)]
            assert alarm == out.Alarm("engine_failed", "ZeroDivisionError")
        code, _, _ = started.wait()
    assert code == 1
    assert left_behind(folder) == []


def test_what_an_engine_library_prints_goes_to_stderr(folder: Path) -> None:
    """H101: from Python and from C alike."""
    with worker(folder, fault="print") as started:
        assert started.ready.worker == "a"
        started.process.terminate()
        code, rest, errors = started.wait()
    assert (code, rest) == (0, b"")
    assert "from python" in errors
    assert "from c" in errors


async def test_it_says_every_heartbeat_how_it_is(folder: Path) -> None:
    with worker(folder, timers=FAST) as started:
        async with connect(started.ready) as client:
            idle = await client.stats()
            assert (idle.step, idle.sessions, idle.preemptions) == (0, 0, 0)
            assert idle.threads >= 4
            assert idle.fds > 3
            assert idle.rss_bytes > 1 << 20
            await client.ask(into.Start(spec(), 1, 5), out.Started)
            busy = await client.stats(lambda s: s.held == 1)
            assert (busy.step, busy.unaccepted) == (5, 5)
            assert busy.step_ms_median > 0


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"worker_id": "a", "socket_dir": "/x", "engine": "sim", "colour": 1}',
        '{"worker_id": "a", "socket_dir": "/x", "engine": "abacus"}',
        '{"worker_id": "a", "socket_dir": "/x", "engine": "sim", "precopy_duty": 0}',
        '{"worker_id": "a", "socket_dir": "/x", "engine": "sim", "window": 0}',
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    for wanted in (path, tmp_path / "missing.json"):
        with pytest.raises(SwapdError) as refused:
            load_settings(str(wanted))
        assert refused.value.code is Code.CONFIG_INVALID
