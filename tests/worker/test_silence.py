"""A worker is silent only while somebody listens (B33)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
import zmq

from swapd.config import TimerConfig
from swapd.worker.link import WorkerLink
from swapd.worker.silence import Silence
from tests.worker.test_link import Told, settings


def test_a_worker_is_silent_since_it_was_heard() -> None:
    silence = Silence(1.0, 100.0)
    assert [silence.look(at) for at in (101.0, 102.5, 103.5)] == [1.0, 2.5, 3.5]
    silence.heard(104.0)
    assert silence.look(104.5) == 0.5


@pytest.mark.parametrize("away_s", [1.5, 60.0, 3600.0])
def test_the_time_in_which_nobody_listened_is_none_of_its_silence(away_s: float) -> None:
    silence = Silence(1.0, 100.0)
    assert silence.look(101.0) == 1.0
    assert silence.look(102.0 + away_s) == 2.0
    # And from here on it counts again.
    assert [silence.look(at + away_s) for at in (103.0, 104.0)] == [3.0, 4.0]


def test_a_worker_that_was_heard_just_now_is_not_silent_whenever_somebody_looks() -> None:
    """It was read before the late look: nobody is heard in the future."""
    silence = Silence(1.0, 100.0)
    silence.heard(160.0)
    assert silence.look(160.0) == 0.0
    assert silence.look(161.0) == 1.0


async def test_a_coordinator_that_stood_still_takes_no_worker_for_dead(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B33: after a minute in which it did not run it listens first; a worker that is silent then is ended."""
    config = settings(tmp_path / "s", timers=TimerConfig(heartbeat_s=1.0, suspect_s=3.0, dead_s=10.0))
    (entry,) = config.workers
    told = Told()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = WorkerLink(config, entry, generation=1, context=context, arena=None, hooks=told)
    link.state = "ready"
    ended = trio.Event()

    async def watch() -> None:
        await link._watch_heartbeat()
        ended.set()

    async def pass_time(seconds: float) -> None:
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        await pass_time(60.0)
        assert told.states == []
        for silent_s in range(2, 10):
            await pass_time(1.0)
            assert link.state == ("suspect" if silent_s >= 3 else "ready")
        assert not ended.is_set()
        await pass_time(1.0)
        assert ended.is_set()
        assert link.reason == "no heartbeat"
    context.term()
