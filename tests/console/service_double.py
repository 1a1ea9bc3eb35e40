"""The one double of these tests: the facade, with real event lists and readers that are really woken.

Everything below it (store, workers, moves) has its own tests; everything above it here is real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from swapd.api import Event
from swapd.errors import Code, SwapdError
from swapd.migration.askers import check_reason
from swapd.migration.drains import check_deadline
from swapd.views import (
    Caller,
    DrainMode,
    DrainOrigin,
    DrainView,
    NewSession,
    PreflightView,
    Readiness,
    SessionOutcome,
    SessionView,
    WorkerView,
)
from tests.lent_devices import LentDevices

TENANT = "tenant-token"
OTHER = "other-token"
OPERATOR = "operator-token"
TERMINAL = ("completed", "failed", "cancelled")


def worker_view(name: str, **changes: Any) -> WorkerView:
    """A worker that is ready and has nothing to do."""
    view = WorkerView(
        id=name,
        state="ready",
        admitting=True,
        reason=None,
        incarnation="i",
        engine="sim",
        model="m",
        device="cpu",
        pid=1,
        sessions=0,
        usable_blocks=10,
        committed_blocks=0,
        free_blocks=10,
        drain=None,
        stats={},
    )
    return msgspec.structs.replace(view, **changes)


class SessionDouble:
    def __init__(self, session: str, namespace: str, max_new_tokens: int = 1000) -> None:
        self.id = session
        self.namespace = namespace
        self.max_new_tokens = max_new_tokens
        self.events: list[Event] = []
        self.readers = 0
        self.readers_changed = trio.Event()
        self.changed = trio.Condition()
        self.append("created", {"id": session})

    @property
    def state(self) -> str:
        last = self.events[-1].name
        return last if last in TERMINAL else "running"

    def append(self, name: str, data: dict[str, Any]) -> None:
        self.events.append(Event(len(self.events), name, msgspec.json.encode(data)))  # type: ignore[arg-type]

    def count_readers(self, change: int) -> None:
        self.readers += change
        self.readers_changed.set()
        self.readers_changed = trio.Event()

    async def wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def token(self, text: str = "x") -> None:
        position = len(self.events)
        self.append("token", {"pos": position, "token_id": position * 7, "text": text})
        await self.wake()

    async def end(self, name: str = "completed") -> None:
        self.append(name, {"finish_reason": "length"})
        await self.wake()

    def view(self) -> SessionView:
        return SessionView(
            id=self.id,
            state=self.state,  # type: ignore[arg-type]
            model="m",
            cursor=self.events[-1].id,
            prompt_tokens=3,
            accepted=sum(event.name == "token" for event in self.events),
            max_new_tokens=self.max_new_tokens,
            worker="a",
            epoch=1,
            created_at=1.0,
        )


class SubscriptionDouble:
    """A generator behind `__aiter__`: the harder of the two shapes that the facade allows."""

    def __init__(self, service: ServiceDouble, session: SessionDouble, after: int | None) -> None:
        self._service = service
        self._session = session
        self._cursor = -1 if after is None else after

    @property
    def cursor(self) -> int:
        return self._cursor

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        session = self._session
        while True:
            batch = session.events[self._cursor + 1 :]
            if batch:
                self._cursor = batch[-1].id
                yield batch
            if session.events[self._cursor].name in TERMINAL or self._service.stopping:
                return
            async with session.changed:
                if session.events[self._cursor + 1 :] or self._service.stopping:
                    continue
                await session.changed.wait()


class ServiceDouble(LentDevices):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, SessionDouble] = {}
        self.asked: list[NewSession] = []
        self.drains_started: list[tuple[str, float | None, str]] = []
        self.reasons_started: list[str | None] = []
        self.modes_started: list[str] = []
        self.drains_cancelled: list[str] = []
        self.drain_views: list[DrainView] = [self._drain()]
        """Newest first."""
        self.worker_views: list[WorkerView] = [worker_view("a")]
        self.session_views: list[SessionView] = []
        """Beside those of `known`, for an operator."""
        self.ahead: PreflightView | SwapdError = PreflightView("a", "native", (), 0)
        self.refuse_with: SwapdError | None = None
        self.break_with: Exception | None = None
        self.ready = Readiness(True, ())
        self._stopping = trio.Event()

    def add(self, session: str, namespace: str = "t", tokens: int = 0) -> SessionDouble:
        made = self.known[session] = SessionDouble(session, namespace)
        for _ in range(tokens):
            made.append("token", {"pos": len(made.events), "text": "x"})
        return made

    async def stop(self) -> None:
        self._stopping.set()
        for session in self.known.values():
            await session.wake()

    # the facade

    def authenticate(self, token: str | None) -> Caller:
        callers = {
            TENANT: Caller("t"),
            OTHER: Caller("u"),
            OPERATOR: Caller("ops", is_operator=True),
        }
        if token is None or token not in callers:
            raise SwapdError(Code.UNAUTHENTICATED)
        return callers[token]

    async def create_session(self, caller: Caller, request: NewSession) -> SessionView:
        self._maybe_fail()
        self.asked.append(request)
        return self.add(f"s{len(self.known)}", caller.namespace).view()

    def _find(self, caller: Caller, session: str) -> SessionDouble:
        found = self.known.get(session)
        if found is None or found.namespace != caller.namespace:
            raise SwapdError(Code.SESSION_UNKNOWN)
        return found

    def _maybe_fail(self) -> None:
        if self.refuse_with is not None:
            raise self.refuse_with
        if self.break_with is not None:
            raise self.break_with

    async def session(self, caller: Caller, session: str) -> SessionView:
        self._maybe_fail()
        for view in self.session_views:
            if view.id == session and caller.is_operator:
                return view
        return self._find(caller, session).view()

    async def sessions(self, caller: Caller) -> Sequence[SessionView]:
        every = caller.is_operator or caller.is_viewer
        own = [s.view() for s in self.known.values() if s.namespace == caller.namespace]
        return [*own, *(self.session_views if every else [])]

    async def cancel_session(self, caller: Caller, session: str) -> SessionView:
        for number, view in enumerate(self.session_views):
            if view.id == session and caller.is_operator:
                self.session_views[number] = msgspec.structs.replace(view, state="cancelled")
                return self.session_views[number]
        found = self._find(caller, session)
        if found.state not in TERMINAL:
            await found.end("cancelled")
        return found.view()

    @asynccontextmanager
    async def subscribe(
        self, caller: Caller, session: str, after: int | None, *, notices: bool = False
    ) -> AsyncIterator[SubscriptionDouble]:
        found = self._find(caller, session)
        if after is not None and after > found.events[-1].id:
            raise SwapdError(Code.CURSOR_AHEAD)
        found.count_readers(+1)
        try:
            yield SubscriptionDouble(self, found, after)
        finally:
            found.count_readers(-1)

    async def workers(self, caller: Caller) -> Sequence[WorkerView]:
        return self.worker_views

    async def preflight(self, caller: Caller, worker: str, mode: DrainMode = "native") -> PreflightView:
        if worker not in {view.id for view in self.worker_views}:
            raise SwapdError(Code.WORKER_UNKNOWN)
        if isinstance(self.ahead, SwapdError):
            raise self.ahead
        return msgspec.structs.replace(self.ahead, worker=worker, mode=mode)

    def _drain(self, worker: str = "a", origin: str = "operator") -> DrainView:
        outcome = SessionOutcome("s0", "completed_native", None, "release", target="b", frozen_ms=1.5)
        return DrainView("d1", worker, "running", origin, 1.0, 60.0, None, (outcome,))  # type: ignore[arg-type]

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
        reason = check_reason(reason)
        if worker != "a":
            raise SwapdError(Code.WORKER_UNKNOWN)
        if self.drains_started:
            raise SwapdError(Code.DRAIN_EXISTS, "d1")
        self.drains_started.append((worker, deadline_s, origin))
        self.modes_started.append(mode)
        self.reasons_started.append(reason)
        return self._drain(worker, origin)

    async def start_drains(
        self,
        caller: Caller,
        workers: Sequence[str],
        deadline_s: float | None = None,
        origin: DrainOrigin = "operator",
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> Sequence[DrainView]:
        return [await self.start_drain(caller, each, deadline_s, origin, mode, reason) for each in workers]

    async def drain(self, caller: Caller, drain: str) -> DrainView:
        for view in self.drain_views:
            if view.id == drain:
                return view
        raise SwapdError(Code.DRAIN_UNKNOWN)

    async def drains(
        self, caller: Caller, before: str | None = None, limit: int = 100
    ) -> Sequence[DrainView]:
        names = [view.id for view in self.drain_views]
        first = 0 if before is None else names.index(before) + 1 if before in names else len(names)
        return self.drain_views[first : first + limit]

    async def cancel_drain(self, caller: Caller, drain: str) -> DrainView:
        self.drains_cancelled.append(drain)
        return await self.drain(caller, drain)

    def readiness(self) -> Readiness:
        return self.ready

    def limits(self) -> dict[str, Any]:
        return {"max_body_bytes": 1 << 20}

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def wait_stopping(self) -> None:
        await self._stopping.wait()
