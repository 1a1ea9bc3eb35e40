"""Between the Trio thread and the others: requests in, reports out, both bounded.

Requests are few and answered one by one, so a full inbox is refused and a full outbox makes the receiver stop
reading. Grants are latest-value and never queue. Tokens in the outbox are bounded by sessions and window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Condition
from typing import Final, NamedTuple

import trio

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import FromWorker, PreparedItem
from swapd.messages.to_worker import Grant, PrepareItem, ToWorker

MAX_PENDING_REQUESTS: Final = 4096
MAX_PENDING_REPORTS: Final = 4096
CURRENT: Final = -1
"""Connection of a report that answers nobody: it goes to whoever is the coordinator when it is sent."""


class Ticket(NamedTuple):
    """Whom to answer: the connection, counted from 0 at each new Hello, and the request id."""

    connection: int
    request: int


EVENT_TICKET: Final = Ticket(CURRENT, 0)


class Request(NamedTuple):
    """A command for the engine thread; `at_s` is when it arrived, monotonic."""

    ticket: Ticket
    body: ToWorker
    at_s: float


class Checked(NamedTuple):
    """What a copy thread found of a Prepare: items with the code of those that failed."""

    ticket: Ticket
    batch: str
    items: Sequence[tuple[PrepareItem, PreparedItem]]
    import_ms: float


class Takeover(NamedTuple):
    """A coordinator has said Hello on a new connection; tokens of steps before this do not go there."""

    connection: int


Work = Request | Checked | Takeover


class Inbox:
    """What the engine thread does between two steps."""

    def __init__(self) -> None:
        self._work: deque[Work] = deque()
        self._grants: dict[tuple[str, int], Grant] = {}
        self._changed = Condition()
        self._stopping = False

    def put(self, work: Work) -> None:
        """Queue work (any thread). Raises `not_ready` when the engine thread is far behind."""
        with self._changed:
            if isinstance(work, Request) and len(self._work) >= MAX_PENDING_REQUESTS:
                raise SwapdError(Code.NOT_READY, "the engine thread is behind")
            if isinstance(work, Takeover):
                self._grants.clear()
            self._work.append(work)
            self._changed.notify()

    def put_grants(self, grants: Iterable[Grant]) -> None:
        """Merge grants: the latest of a session counts (any thread)."""
        with self._changed:
            for grant in grants:
                self._grants[grant.session, grant.epoch] = grant
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def take(self, wait_s: float) -> tuple[list[Work], list[Grant], bool]:
        """Everything that has come, after at most `wait_s`; grants come after the work they followed."""
        with self._changed:
            if wait_s > 0:
                self._changed.wait_for(lambda: self._work or self._grants or self._stopping, wait_s)
            work, grants = list(self._work), list(self._grants.values())
            self._work.clear()
            self._grants.clear()
            return work, grants, self._stopping


class Outbox:
    """Reports for the coordinator in the order in which they were posted."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._reports: deque[tuple[Ticket, FromWorker]] = deque()
        self._wake = trio.Event()
        self._taken = trio.Event()

    def post(self, ticket: Ticket, body: FromWorker) -> None:
        """Queue a report (any thread). Reports of an ending process are dropped."""
        self._reports.append((ticket, body))
        try:
            self._token.run_sync_soon(self._notify, idempotent=True)
        except trio.RunFinishedError:
            self._reports.clear()

    @property
    def full(self) -> bool:
        return len(self._reports) >= MAX_PENDING_REPORTS

    def __len__(self) -> int:
        return len(self._reports)

    async def get(self) -> tuple[Ticket, FromWorker]:
        """The next report. If cancelled, none was taken."""
        while not self._reports:
            await self._wake.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        report = self._reports.popleft()
        self._taken.set()
        self._taken = trio.Event()
        return report

    async def wait_below(self, count: int) -> None:
        """Return when fewer than `count` reports wait."""
        while len(self._reports) >= count:
            await self._taken.wait()

    def _notify(self) -> None:
        self._wake.set()
        self._wake = trio.Event()
