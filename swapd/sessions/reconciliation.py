"""The report of a start: what became of each session that the last run left (H152). Pure, but for the log.

A session has one entry. What several workers hold of it is one story: a frozen source and a prepared target
of a move that has no commit are one `aborted`. Things that a worker holds of no session that goes on are
`discarded`, by session. Once finished, the report stays as it is until the next start.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from swapd.messages.generation import PARK
from swapd.sessions.inventory import Found
from swapd.sessions.record import MoveRecord, SessionRecord
from swapd.views import (
    Reconciled,
    ReconciledAs,
    ReconciledBecause,
    ReconciliationView,
)

log = logging.getLogger("swapd.sessions.recovery")

LISTED_MAX: Final = 4096
"""Sessions that the report lists: its answer stays far below what a frame may have."""

Met = Literal["found", "absent", "awaited"]


class Reconciliation:
    """What was found so far. Times: `now` is a monotonic clock's, `wall` is seconds since 1970."""

    def __init__(self, workers: Iterable[str], wall: float) -> None:
        # The park is none of them: it is there from the start, with what is on disk.
        self._workers: dict[str, Met] = dict.fromkeys(workers, "awaited")
        self._began_at = wall
        self._finished_at: float | None = None
        self._all_met: float | None = None
        self._found_at: float | None = None
        self._ready: float | None = None
        self._entries: dict[str, Reconciled] = {}
        self._moves: dict[str, bool] = {}

    @property
    def finished(self) -> bool:
        return self._finished_at is not None

    def moved(self, moves: Iterable[MoveRecord]) -> None:
        """Take note of the moves that were under way: by session, whether each had its commit."""
        for move in moves:
            self._moves[move.session] = move.state == "committed"

    def met(self, worker: str, how: Met) -> None:
        """A worker attached, or there was no process of it. The first word counts."""
        if not self.finished and self._workers.get(worker) == "awaited":
            self._workers[worker] = how

    def all_met(self, now: float, wall: float) -> None:
        """Every worker was met, or the wait for them is over: decisions begin."""
        if self._all_met is None:
            self._all_met, self._found_at = now, wall

    def kept(self, record: SessionRecord, accepted: int, found: Found) -> Reconciled | None:
        """A worker goes on with a session as its owner. None: told already."""
        committed = self._moves.get(record.id)
        if found == "parked":
            why: ReconciledBecause = "move_committed" if committed else "owner_has_it"
            return self._enter(record, accepted, "parked", why)
        if found == "rehomed":
            return self._enter(record, accepted, "rehomed", "target_lost")
        if committed or found == "committed_forward":
            return self._enter(record, accepted, "committed_forward", "move_committed")
        if committed is not None or found == "aborted":
            return self._enter(record, accepted, "aborted", "move_not_committed")
        return self._enter(record, accepted, "resumed", "owner_has_it")

    def dropped(self, session: str, worker: str, epoch: int, *, known: bool) -> Reconciled | None:
        """A worker held what is of no session that goes on. None: told already."""
        if self.finished or session in self._entries:
            return None
        reason: ReconciledBecause = "session_over" if known else "session_unknown"
        entry = Reconciled(session, "discarded", reason, worker, epoch, 0)
        self._entries[session] = entry
        return entry

    def decided(
        self,
        record: SessionRecord,
        accepted: int,
        result: Literal["replayed", "failed", "parked"],
        why: ReconciledBecause,
        recomputed: int | None = 0,
    ) -> Reconciled | None:
        """A session that its owner did not have was rebuilt, or ended, or waits. None: finished already."""
        return self._enter(record, accepted, result, why, recomputed)

    def rebuilt(self, session: str, recomputed: int) -> None:
        """What a replay of the report cost is known; that may be long after the report is finished."""
        entry = self._entries.get(session)
        if entry is not None and entry.recomputed_tokens is None:
            self._entries[session] = msgspec.structs.replace(entry, recomputed_tokens=recomputed)

    def loss(self, worker: str | None, *, connected: bool) -> ReconciledBecause:
        """Why a session of this worker has to be decided about; `connected`: its incarnation is there."""
        if connected or worker == PARK:
            return "session_lost"
        return (
            "worker_lost" if worker is not None and self._workers.get(worker) == "found" else "worker_absent"
        )

    def finish(self, records: Iterable[tuple[SessionRecord, int]], now: float, wall: float) -> None:
        """Every session is resolved; `records` are all that were open at the start, as they are now."""
        for record, accepted in records:
            if record.id not in self._entries and record.terminal:
                self._enter(record, accepted, "ended", "session_over")
        self._ready, self._finished_at = now, wall

    def view(self, undecided: int) -> ReconciliationView:
        """What operators see; the list is in the order of the decisions."""
        entries = list(self._entries.values())
        took = None
        if self._ready is not None and self._all_met is not None:
            took = self._ready - self._all_met
        return ReconciliationView(
            state="done" if self.finished else "waiting" if self._all_met is None else "deciding",
            began_at=self._began_at,
            finished_at=self._finished_at,
            workers=dict(self._workers),
            found_at=self._found_at,
            found_to_ready_s=took,
            counts=dict(Counter[str](entry.result for entry in entries)),
            sessions=tuple(entries[:LISTED_MAX]),
            undecided=undecided,
            left_out=max(0, len(entries) - LISTED_MAX),
        )

    def _enter(
        self,
        record: SessionRecord,
        accepted: int,
        result: ReconciledAs,
        why: ReconciledBecause,
        recomputed: int | None = 0,
    ) -> Reconciled | None:
        """The last word about a session counts: one that was resumed may lose its worker before the end."""
        if self.finished:
            return None
        worker = record.owner.worker if record.owner is not None else None
        entry = Reconciled(record.id, result, why, worker, record.epoch, accepted, recomputed, record.code)
        if self._entries.get(record.id) == entry:
            return None
        self._entries[record.id] = entry
        return entry


def tell(entry: Reconciled | None) -> None:
    """One line of the log for each entry of the report (H152)."""
    if entry is not None:
        told = {
            "session": entry.session,
            "outcome": entry.result,
            "reason": entry.reason,
            "epoch": entry.epoch,
        }
        log.info("session reconciled", extra=told | {"worker": entry.worker, "accepted": entry.accepted})
