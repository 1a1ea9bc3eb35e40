"""A service of a few dictionaries, behind the facade that the front doors see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from swapd.api import Event
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import ScheduleLog, StepRecord
from swapd.migration.drains import check_deadline
from swapd.views import (
    Asker,
    Caller,
    DrainMode,
    DrainOrigin,
    DrainView,
    NewSession,
    Readiness,
    SessionOutcome,
    SessionView,
    WorkerView,
)
from tests.lent_devices import LentDevices

TERMINAL = ("completed", "failed", "cancelled")


class Stream:
    """The events of one session; readers wait for more."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.grown = trio.Event()
        self.readers = 0
        self.left = trio.Event()

    def add(self, name: Any, **data: Any) -> None:
        self.events.append(Event(len(self.events), name, json.dumps(data).encode()))
        self.grown.set()
        self.grown = trio.Event()

    @property
    def finished(self) -> bool:
        return bool(self.events) and self.events[-1].name in TERMINAL


class SubscriptionDouble:
    def __init__(self, service: ServiceDouble, stream: Stream, after: int) -> None:
        self.service = service
        self.stream = stream
        self.cursor = after

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        while True:
            grown = self.stream.grown
            batch = [event for event in self.stream.events if event.id > self.cursor]
            if batch:
                self.cursor = batch[-1].id
                yield batch
            elif self.stream.finished or self.service.stopping:
                return
            else:
                await grown.wait()


class ServiceDouble(LentDevices):
    """Two workers `a` and `b`; a session's events are added by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, Stream] = {}
        self.views: dict[str, SessionView] = {}
        self.drain_views: dict[str, DrainView] = {}
        self.requests: list[NewSession] = []
        self.callers: list[Caller] = []
        self.stopping = False
        self.asked_to_stop = trio.Event()
        self.failing: Exception | None = None
        self.subscriptions = 0
        self.story: list[tuple[str, dict[str, Any]]] = []
        """Events that each new session gets at once."""
        self.recorded: list[StepRecord] = []
        """What `schedule` hands out, two at a time."""
        self.polls_to_drained: int | None = None
        """How often a drain is looked at until it is drained; None: the test decides."""

    def authenticate(self, token: str | None) -> Caller:
        return Caller("operators", is_operator=True)

    async def create_session(self, caller: Caller, request: NewSession) -> SessionView:
        self._enter(caller)
        self.requests.append(request)
        session = f"ses_{len(self.views)}"
        self.streams[session] = stream = Stream()
        stream.add("created", session=session)
        for name, data in self.story:
            stream.add(name, **data)
        self.views[session] = SessionView(
            id=session,
            state="running",
            model="smollm2",
            cursor=len(stream.events) - 1,
            prompt_tokens=len(request.prompt),
            accepted=0,
            max_new_tokens=request.max_new_tokens,
            worker="a",
            epoch=1,
            created_at=0.0,
        )
        return self.views[session]

    async def session(self, caller: Caller, session: str) -> SessionView:
        self._enter(caller)
        if session not in self.views:
            raise SwapdError(Code.SESSION_UNKNOWN)
        return self.views[session]

    async def cancel_session(self, caller: Caller, session: str) -> SessionView:
        view = await self.session(caller, session)
        self.views[session] = view = msgspec.structs.replace(view, state="cancelled")
        if not self.streams[session].finished:
            self.streams[session].add("cancelled", reason="session_cancelled")
        return view

    @asynccontextmanager
    async def subscribe(
        self, caller: Caller, session: str, after: int | None, *, notices: bool = False
    ) -> AsyncIterator[SubscriptionDouble]:
        self._enter(caller)
        if session not in self.streams:
            raise SwapdError(Code.SESSION_UNKNOWN)
        stream = self.streams[session]
        if after is not None and after >= len(stream.events):
            raise SwapdError(Code.CURSOR_AHEAD)
        stream.readers += 1
        self.subscriptions += 1
        try:
            yield SubscriptionDouble(self, stream, -1 if after is None else after)
        finally:
            stream.readers -= 1
            stream.left.set()

    async def workers(self, caller: Caller) -> Sequence[WorkerView]:
        self._enter(caller)
        return [self.worker("a"), self.worker("b")]

    def worker(self, worker: str) -> WorkerView:
        drains = [view.id for view in self.drain_views.values() if view.worker == worker]
        return WorkerView(
            id=worker,
            state="ready",
            admitting=not drains,
            reason=None,
            incarnation=f"inc_{worker}",
            engine="sim",
            model="smollm2",
            device="cpu",
            pid=1,
            sessions=1,
            usable_blocks=100,
            committed_blocks=10,
            free_blocks=90,
            drain=drains[-1] if drains else None,
            stats={"step_ms_median": 12.5},
        )

    async def sessions(self, caller: Caller) -> Sequence[SessionView]:
        self._enter(caller)
        return [view for view in self.views.values() if view.state not in TERMINAL]

    async def start_drain(
        self,
        caller: Caller,
        worker: str,
        deadline_s: float | None = None,
        origin: DrainOrigin = "operator",
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> DrainView:
        check_deadline(deadline_s)
        self._enter(caller)
        if worker not in ("a", "b"):
            raise SwapdError(Code.WORKER_UNKNOWN, worker)
        drain = f"drn_{len(self.drain_views)}"
        self.drain_views[drain] = DrainView(
            id=drain,
            worker=worker,
            state="running",
            origin=origin,
            created_at=0.0,
            deadline_s=deadline_s or 600.0,
            finished_at=None,
            sessions=tuple(
                SessionOutcome(session=view.id, outcome=None, reason=None, phase="planned")
                for view in self.views.values()
            ),
            mode=mode,
            reason=reason,
            askers=(Asker(origin, 0.0, reason),),
        )
        return self.drain_views[drain]

    async def start_drains(
        self,
        caller: Caller,
        workers: Sequence[str],
        deadline_s: float | None = None,
        origin: DrainOrigin = "operator",
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> Sequence[DrainView]:
        if unknown := [worker for worker in workers if worker not in ("a", "b")]:
            raise SwapdError(Code.WORKER_UNKNOWN, unknown[0])
        return [await self.start_drain(caller, each, deadline_s, origin, mode, reason) for each in workers]

    async def drain(self, caller: Caller, drain: str) -> DrainView:
        self._enter(caller)
        if drain not in self.drain_views:
            raise SwapdError(Code.DRAIN_UNKNOWN)
        if self.polls_to_drained is not None:
            self.polls_to_drained -= 1
            if self.polls_to_drained <= 0:
                self.finish_drain(drain)
        return self.drain_views[drain]

    async def drains(self, caller: Caller) -> Sequence[DrainView]:
        self._enter(caller)
        return list(self.drain_views.values())[::-1]

    async def cancel_drain(self, caller: Caller, drain: str) -> DrainView:
        view = await self.drain(caller, drain)
        if view.state in ("drained", "cancelled"):
            return view
        self.drain_views[drain] = msgspec.structs.replace(view, state="cancelled", finished_at=1.0)
        return self.drain_views[drain]

    async def schedule(self, caller: Caller, worker: str) -> ScheduleLog:
        self._enter(caller)
        if worker not in ("a", "b"):
            raise SwapdError(Code.WORKER_UNKNOWN, worker)
        taken, self.recorded = tuple(self.recorded[:2]), self.recorded[2:]
        return ScheduleLog(taken)

    def finish_drain(self, drain: str, state: Any = "drained") -> None:
        view = self.drain_views[drain]
        done = tuple(
            msgspec.structs.replace(
                each, outcome="completed_native", phase="finished", target="b", frozen_ms=3.5
            )
            for each in view.sessions
        )
        self.drain_views[drain] = msgspec.structs.replace(view, state=state, finished_at=1.0, sessions=done)

    def readiness(self) -> Readiness:
        return Readiness(not self.stopping, ("stopping",) if self.stopping else ())

    def limits(self) -> dict[str, Any]:
        return {}

    async def wait_stopping(self) -> None:
        await self.asked_to_stop.wait()

    def stop(self) -> None:
        self.stopping = True
        self.asked_to_stop.set()
        for stream in self.streams.values():
            stream.grown.set()

    def _enter(self, caller: Caller) -> None:
        self.callers.append(caller)
        if self.failing is not None:
            raise self.failing
