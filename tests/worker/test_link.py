"""The coordinator's end of the link, with real worker processes: who is taken, lost, or given up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq

from swapd.config import Config, CredentialConfig, ModelConfig, TimerConfig, WorkerConfig
from swapd.messages import to_worker as into
from swapd.messages.envelope import Report, encode
from swapd.messages.from_worker import Inventory, Started, Tokens
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Grant
from swapd.worker import link as link_module
from swapd.worker import restarts
from swapd.worker.link import LinkState, WorkerLink
from tests.worker.client import SIM, WAIT_S, left_behind, next_generation, spec, worker

PATIENT = TimerConfig(heartbeat_s=0.05, suspect_s=WAIT_S, dead_s=WAIT_S, rpc_s=WAIT_S)
"""Where no worker hangs, one that says nothing only waits for its turn."""
WATCHFUL = TimerConfig(heartbeat_s=0.05, suspect_s=1.0, dead_s=2.0, rpc_s=WAIT_S)


class Told:
    """Hooks that remember."""

    def __init__(self) -> None:
        self.states: list[tuple[LinkState, str | None]] = []
        self.coming: set[tuple[LinkState, bool]] = set()
        self.attached_as: list[Owner] = []
        self.lost_owners: list[Owner] = []
        self.asked_grants: list[list[str]] = []
        self.steps: list[Tokens] = []
        self.limits: dict[str, int] = {}
        self._changed = trio.Event()

    def tokens(self, link: WorkerLink, message: Tokens) -> None:
        self.steps.append(message)
        self._tell()

    def grants(self, link: WorkerLink, sessions: Iterable[str]) -> Sequence[Grant]:
        self.asked_grants.append(list(sessions))
        return [Grant(name, 1, 0, self.limits[name]) for name in self.asked_grants[-1]]

    def heartbeat(self, link: WorkerLink) -> None:
        self._tell()

    def changed(self, link: WorkerLink) -> None:
        self.states.append((link.state, link.reason))
        self.coming.add((link.state, link.coming))
        self._tell()

    def absent(self, link: WorkerLink) -> None:
        pass

    async def attached(self, link: WorkerLink, inventory: Inventory) -> None:
        assert link.owner is not None
        self.attached_as.append(link.owner)
        self._tell()

    def lost(self, link: WorkerLink, owner: Owner) -> None:
        self.lost_owners.append(owner)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, done: object) -> None:
        assert callable(done)
        with trio.fail_after(WAIT_S):
            while not done():
                await self._changed.wait()


def settings(folder: Path, **changes: Any) -> Config:
    """One worker, `a`, which somebody else starts unless the changes say otherwise."""
    folder.mkdir(mode=0o700, exist_ok=True)
    entry = {"worker_id": "a", "engine": "sim", "spawn": False}
    entry |= {name: changes.pop(name) for name in WorkerConfig.__struct_fields__ if name in changes}
    fields: dict[str, Any] = {
        "database_path": str(folder / "swapd.db"),
        "socket_dir": str(folder),
        "workers": (WorkerConfig(**entry),),  # type: ignore[arg-type]  # the test's own keywords
        "models": (ModelConfig(alias="sim", path="."),),
        "credentials": (CredentialConfig(namespace="t", token="t"),),
        "sim": SIM,
        "timers": PATIENT,
    }
    return Config(**(fields | changes))


@asynccontextmanager
async def linked(folder: Path, **changes: Any) -> AsyncIterator[tuple[WorkerLink, Told]]:
    """A running link; a worker that it has started ends with it."""
    config = settings(folder, **changes)
    (entry,) = config.workers
    hooks = Told()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = WorkerLink(config, entry, generation=next_generation(), context=context, arena=None, hooks=hooks)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(link.run)
            yield link, hooks
            nursery.cancel_scope.cancel()
    finally:
        context.term()
        if entry.spawn:
            with trio.CancelScope(shield=True):
                await link.stop_process()


async def test_a_worker_started_elsewhere_is_taken_under_each_incarnation(folder: Path) -> None:
    """B31, H104: no incarnation is written anywhere, and no coordinator is restarted."""
    async with linked(folder) as (link, told):
        with worker(folder) as first:
            await told.until(lambda: told.attached_as)
            assert told.attached_as == [Owner("a", first.ready.incarnation)]
            os.kill(first.process.pid, signal.SIGKILL)
            first.wait()
            await told.until(lambda: told.lost_owners)
            assert told.lost_owners == told.attached_as
            assert link.owner is None
        with worker(folder) as second:
            await told.until(lambda: len(told.attached_as) == 2)
            assert link.owner == Owner("a", second.ready.incarnation)
            assert not link.is_owner(told.attached_as[0])
            assert isinstance(await link.request(into.Start(spec(), 1, 0), Started), Started)


async def test_a_pinned_incarnation_that_differs_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H103: refused and logged; the one that is pinned is taken."""
    with worker(folder) as started:
        async with linked(folder, incarnation="inc_other") as (link, told):
            with trio.fail_after(WAIT_S):
                while not caplog.records:  # noqa: ASYNC110  # logged by the link's own look
                    await trio.sleep(0.01)
            assert (link.state, link.owner, told.attached_as) == ("starting", None, [])
        async with linked(folder, incarnation=started.ready.incarnation) as (link, told):
            await told.until(lambda: told.attached_as)
            assert link.owner == Owner("a", started.ready.incarnation)


async def test_credits_of_all_sessions_share_one_message(folder: Path) -> None:
    """H38: as many as have changed since the last one, however often; the latest value counts."""
    with worker(folder):
        async with linked(folder) as (link, told):
            await told.until(lambda: told.attached_as)
            sessions = [spec((n + 1,), 5) for n in range(6)]
            for given in sessions:
                await link.request(into.Start(given, 1, 0), Started)
            told.asked_grants.clear()
            for limit in (1, 2, 5):
                for given in sessions:
                    told.limits[given.session] = limit
                    link.credit(given.session)
            names = [given.session for given in sessions]
            await told.until(lambda: sum(len(run.ids) for s in told.steps for run in s.runs) == 30)
            assert told.asked_grants == [names]
            assert len(told.steps) == 5
            for name in names:
                link.tell(into.Cancel(name, 1))


async def test_a_worker_that_hangs_is_suspect_then_dead_and_never_comes_back(folder: Path) -> None:
    """B33, B39: it is killed, so that nothing of it can come late; what it was asked ends at once."""
    with worker(folder) as started:
        async with linked(folder, timers=WATCHFUL) as (link, told):
            await told.until(lambda: told.attached_as)
            os.kill(started.process.pid, signal.SIGSTOP)
            await told.until(lambda: told.lost_owners)
            states = [state for state, _ in told.states]
            assert states[0] == "ready"
            died = states.index("dead")
            assert told.states[died - 1 : died + 1] == [("suspect", "no heartbeat"), ("dead", "no heartbeat")]
            assert link.owner is None
            with trio.fail_after(WAIT_S):
                # Killed and collected: not even a zombie is left to be continued.
                while Path(f"/proc/{started.process.pid}").exists():  # noqa: ASYNC110, ASYNC240
                    await trio.sleep(0.01)


async def test_what_another_incarnation_says_is_fenced_and_counted(folder: Path) -> None:
    """H104: on the very connection, too."""
    with worker(folder):
        async with linked(folder) as (link, told):
            await told.until(lambda: told.attached_as)
            assert link.ready is not None

            class OneFrame:
                """A socket that has received one frame of the past, and then nothing more."""

                def __init__(self) -> None:
                    self.frames = [[encode(Report("inc_old", 1, 0, Tokens(1, ())))]]

                async def recv_batch(self) -> list[list[bytes]]:
                    if not self.frames:
                        await trio.sleep_forever()
                    return [self.frames.pop()]

            with trio.move_on_after(0.05):
                await link._receive(OneFrame())  # type: ignore[arg-type]  # what it uses of a socket
            assert (link.fenced, told.steps) == (1, [])


def failing_interpreter(folder: Path) -> tuple[Path, Path]:
    """Something that is started as a worker's interpreter and ends at once, and where it counts that."""
    starts = folder.parent / "starts"
    script = folder.parent / "python"
    script.write_text(f"#!/bin/sh\necho started >> {starts}\nexit 1\n")
    script.chmod(0o700)
    return script, starts


async def test_a_worker_that_never_lasts_is_given_up_until_somebody_starts_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B32: with back-off, so many times and not more; one started by hand is taken."""
    monkeypatch.setattr(restarts, "BACKOFF_FIRST_S", 0.001)
    script, starts = failing_interpreter(folder)
    changes = {"spawn": True, "python": str(script), "worker_restarts": 2}
    async with linked(folder, **changes) as (link, told):
        await told.until(lambda: any("given up" in (reason or "") for _, reason in told.states))
        assert (link.state, link.reason) == ("dead", "given up after 3 starts in a row that did not last")
        assert not link.coming
        assert told.coming == {("starting", True), ("dead", True), ("dead", False)}
        assert starts.read_text().split() == ["started"] * 3
        with worker(folder) as started:
            await told.until(lambda: told.attached_as)
            assert link.owner == Owner("a", started.ready.incarnation)
            assert link.reason is None


async def test_the_wait_between_starts_doubles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B32: a worker that fails at once costs a few starts, not a storm of them."""
    waits: list[float] = []
    sleep = trio.sleep

    async def noted(seconds: float) -> None:
        if restarts.BACKOFF_FIRST_S <= seconds <= restarts.BACKOFF_MAX_S:
            waits.append(seconds)
            seconds = 0.0
        await sleep(seconds)

    monkeypatch.setattr(link_module.trio, "sleep", noted)
    script, _ = failing_interpreter(folder)
    async with linked(folder, spawn=True, python=str(script), worker_restarts=8) as (_, told):
        await told.until(lambda: any("given up" in (reason or "") for _, reason in told.states))
    assert waits[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_a_spawned_worker_that_dies_is_replaced(folder: Path) -> None:
    """B32: by the link itself; the old incarnation is told lost before the new one is taken."""
    async with linked(folder, spawn=True, python=sys.executable) as (link, told):
        await told.until(lambda: told.attached_as)
        assert link.ready is not None
        os.kill(link.ready.pid, signal.SIGKILL)
        await told.until(lambda: len(told.attached_as) == 2)
        assert told.lost_owners == told.attached_as[:1]
        assert link.owner == told.attached_as[1]
    assert link.state == "stopped"
    assert "a.sock" not in left_behind(folder)


async def test_a_worker_that_is_not_wanted_ends_and_starts_again_when_it_is(folder: Path) -> None:
    """B17: asked to end, collected, not restarted; wanted again it starts at once. Repeats change nothing."""
    async with linked(folder, spawn=True, python=sys.executable) as (link, told):
        await told.until(lambda: told.attached_as)
        pid = link.pid
        assert pid is not None
        link.unwant("quiet hours")
        assert (link.state, link.at_rest) == ("ready", False)
        with trio.fail_after(WAIT_S):
            await link.pause("quiet hours")
            await link.pause("quiet hours")
        assert (link.state, link.reason, link.at_rest, link.pid) == ("stopped", "quiet hours", True, None)
        assert is_gone(pid)
        assert told.lost_owners == told.attached_as
        link.resume()
        link.resume()
        await told.until(lambda: len(told.attached_as) == 2)
        assert (link.state, link.at_rest) == ("ready", False)


async def test_a_start_that_nobody_wants_any_more_is_broken_off(folder: Path, tmp_path: Path) -> None:
    """A worker that is still starting when its device is taken back is not waited for."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o700)
    async with linked(folder, spawn=True, python=str(script)) as (link, _):
        assert link.state == "starting"
        with trio.fail_after(WAIT_S):
            while not (folder / "a.log").exists():  # noqa: ASYNC110  # the process has been launched
                await trio.sleep(0.01)
            await link.pause("taken back")
        assert (link.state, link.reason) == ("stopped", "taken back")
    assert children_of_this_process() == []


async def test_a_worker_found_at_start_is_taken_though_none_would_be_started(folder: Path) -> None:
    """Its sessions have to leave first; once it has ended, no other one is started, nor left running."""
    with worker(folder) as started:
        async with linked(folder) as (link, told):
            link.unwant("taken back")
            await told.until(lambda: told.attached_as)
            assert link.state == "ready"
            with trio.fail_after(WAIT_S):
                await link.pause("taken back")
            assert link.at_rest
            with worker(folder) as second:
                code, _, _ = await trio.to_thread.run_sync(second.wait)
                assert code == 0
        started.process.poll()


async def test_a_pause_that_is_cancelled_stops_the_worker_all_the_same(folder: Path) -> None:
    """What was told to the link holds, whoever told it is gone."""
    async with linked(folder, spawn=True, python=sys.executable) as (link, told):
        await told.until(lambda: told.attached_as)
        with trio.CancelScope() as scope:
            scope.cancel()
            await link.pause("pressure")
        await told.until(lambda: link.at_rest)
        assert link.state == "stopped"


def children_of_this_process() -> list[str]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [c for c in children if b"sleep" in Path(f"/proc/{c}/cmdline").read_bytes()]


def is_gone(pid: int) -> bool:
    """Ended and collected: not even a zombie."""
    return not Path(f"/proc/{pid}").exists()
